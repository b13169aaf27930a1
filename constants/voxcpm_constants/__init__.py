"""Definitions that conversion and runtime share: architecture, step models, constants, manifest, errors."""
