"""Apple's Core AI, for bundles of the target macos27: an optional room."""
