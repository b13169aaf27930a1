"""A bundle in the layout of FluidInference's VoxCPM 1.5: stateless packages without a manifest or a tokenizer."""
