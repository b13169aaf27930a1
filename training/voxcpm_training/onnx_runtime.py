"""ONNX Runtime without its telemetry, as in `voxcpm_runtime.backends.portable.onnx_runtime`: training stands alone."""

import os

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import onnxruntime as ort

__all__ = ["ort"]
