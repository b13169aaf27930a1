"""Voices: recordings, voice files, and the user's store of them."""
