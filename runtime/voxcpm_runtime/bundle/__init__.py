"""Bundles: finding, opening and verifying one."""
