"""Text: checks, normalisation, segments and tokens."""
