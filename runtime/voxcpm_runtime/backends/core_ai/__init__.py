"""The backend on Apple's Core AI, for macos27 bundles; an optional room."""
