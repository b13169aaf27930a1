"""The page: an optional room."""
