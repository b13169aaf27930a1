"""The web page: an optional room."""
