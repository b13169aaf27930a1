"""Speech while its text is still being written."""
