"""Definitions shared by conversion and runtime: architecture, step models, constants, manifest, errors."""
