"""The `specx` command. One file a subcommand; heavy imports stand inside the function that needs them."""
