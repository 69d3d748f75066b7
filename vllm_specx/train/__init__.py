"""Training of draft heads: data from the target itself, then the trainer of `drafters`."""
