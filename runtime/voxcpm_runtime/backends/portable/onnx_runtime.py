"""ONNX Runtime without its telemetry; every other module imports it from here, and a test checks that.

From 1.31 on, importing it queues the processor, the program's path and a device id for a Microsoft host, so
`disable_telemetry_events()` comes too late. A value that the user has set stays.
"""

import os

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as errors

__all__ = ["errors", "ort"]
