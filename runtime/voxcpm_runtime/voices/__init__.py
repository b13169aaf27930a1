"""Voices: recordings, files, and the user's collection."""
