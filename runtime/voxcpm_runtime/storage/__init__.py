"""Atomic writes, checksummed tensors, and memory returned to the operating system."""
