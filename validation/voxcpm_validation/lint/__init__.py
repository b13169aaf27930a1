"""Checks a bundle, without a Mac, for what Core ML and Core AI reject or compute wrongly on real hardware."""
