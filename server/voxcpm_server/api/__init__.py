"""OpenAI's routes, voices, about, probes."""
