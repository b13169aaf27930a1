"""Wyoming, Home Assistant's voice protocol: an optional room."""
