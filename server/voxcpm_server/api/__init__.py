"""Routes: speech, models, voices, about, probes."""
