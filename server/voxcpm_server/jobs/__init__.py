"""Background jobs: an optional room."""
