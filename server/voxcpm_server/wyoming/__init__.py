"""Home Assistant's protocol: an optional room."""
