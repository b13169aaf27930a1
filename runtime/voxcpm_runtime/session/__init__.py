"""Sessions, which speak text while it is being written."""
