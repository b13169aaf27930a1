"""Training of a small VoxCPM checkpoint on synthetic speech: corpus, speech, AudioVAE, language model, export."""
