"""VoxCPM's layers, written for tracing, with upstream's parameter names so that its state dicts load unchanged."""
