"""ONNX Runtime without its telemetry; every other module imports it from here, and a test checks that.

From 1.31 on, importing it queues the processor, the program's path and a device id for a Microsoft host, so
`disable_telemetry_events()` comes too late. A value that the user has set stays.
"""

import os

from voxcpm_constants.errors import MissingExtraError, first_line, is_refused_memory

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

try:
    import onnxruntime as ort
    from onnxruntime.capi import onnxruntime_pybind11_state as errors
except ModuleNotFoundError:
    raise
except ImportError as error:
    if is_refused_memory(error):
        raise MemoryError from error
    # onnxruntime and onnxruntime-gpu are one folder: removing one of them leaves half of the other.
    raise MissingExtraError(
        f"ONNX Runtime is installed in part ({first_line(error)}); pip install --force-reinstall --no-deps "
        "onnxruntime, or onnxruntime-gpu in its place"
    ) from None

# They have no base class but Exception.
ERRORS: tuple[type[Exception], ...] = (
    errors.EPFail,
    errors.Fail,
    errors.InvalidArgument,
    errors.InvalidGraph,
    errors.InvalidProtobuf,
    errors.NoModel,
    errors.NoSuchFile,
    errors.NotImplemented,
    errors.RuntimeException,
)

__all__ = ["ERRORS", "ort"]
