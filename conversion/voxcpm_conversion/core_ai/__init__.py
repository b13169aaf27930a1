"""Step models as Core AI programs, for macOS 27."""
