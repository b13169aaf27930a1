"""Streaming text input over websockets."""
