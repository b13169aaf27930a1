"""What conversion and runtime agree on: architecture, step models, constants, manifest, errors."""
