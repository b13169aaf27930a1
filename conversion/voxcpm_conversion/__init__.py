"""Converts a checkpoint into a bundle. Of the installed packages, only this one and validation import torch."""
