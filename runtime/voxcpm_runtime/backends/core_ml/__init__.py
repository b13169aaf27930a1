"""The backend on Apple's Core ML, through coremltools."""
