"""The portable backend on an NVIDIA GPU: an optional room on top of `portable`."""
