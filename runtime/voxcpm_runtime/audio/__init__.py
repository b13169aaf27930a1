"""Audio: files, samples and levels."""
