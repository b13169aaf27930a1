"""Backends that run step models: Core ML, Core AI, and ONNX Runtime."""
