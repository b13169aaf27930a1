"""Audio files and samples."""
