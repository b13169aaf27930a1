"""Text: what is said, in which parts, and as which tokens."""
