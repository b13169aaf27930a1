"""Proof: each step model and the whole loop against upstream's PyTorch code."""
