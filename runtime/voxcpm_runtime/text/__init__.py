"""Text processing: normalization, sentences, segments and tokens."""
