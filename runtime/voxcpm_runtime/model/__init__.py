"""VoxCPM's inference loop over the step models: sequence, prefill, patches from noise, AudioVAE."""
