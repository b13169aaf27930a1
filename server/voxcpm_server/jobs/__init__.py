"""Speech that outlives its request: an optional room."""
