"""Checkpoint -> bundle: the only package, beside validation, that imports torch."""
