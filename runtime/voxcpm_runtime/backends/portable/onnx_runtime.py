"""ONNX Runtime without its telemetry; every other module takes it from here, and a test holds that.

From 1.31 on it queues the processor, the program's path and a device id for a host of Microsoft's as soon as it is
imported: `disable_telemetry_events()` comes too late. A value that the user has given the variable stays.
"""

import os

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import onnxruntime as ort

__all__ = ["ort"]
