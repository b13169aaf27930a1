"""The portable backend on an NVIDIA GPU: an optional room, which stands on `portable`."""
