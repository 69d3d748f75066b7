"""The engine's side of the shared draft memory: whose text is whose, the file it is kept in, and its operators."""
