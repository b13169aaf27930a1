"""Step models as functions: on Core ML itself, or on ONNX Runtime through the portable executor."""
