"""When each word of the written text is said: what its letters are read as, and where these are in the audio."""
