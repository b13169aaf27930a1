"""The loop of VoxCPM over step models: sequence, prefill, patches from noise, AudioVAE."""
