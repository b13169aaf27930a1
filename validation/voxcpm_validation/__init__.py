"""Validation of a bundle: each step model and the whole loop, compared with upstream's PyTorch code."""
