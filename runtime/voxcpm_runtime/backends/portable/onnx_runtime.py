"""ONNX Runtime without telemetry and with a shared arena; every other module imports it from here.

From 1.31 on, importing it queues the processor, the program's path and a device id for a Microsoft host, so
`disable_telemetry_events()` would be too late. A value set by the user takes precedence.

Sessions on the processor share one arena for their intermediate tensors. Separate arenas make a server's memory grow
for hours, each to the need of its peak number of threads (TRIALS.md).
"""

import os

from voxcpm_constants.errors import MissingExtraError, first_line, is_out_of_memory

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

try:
    import onnxruntime as ort
    from onnxruntime.capi import onnxruntime_pybind11_state as errors
except ModuleNotFoundError:
    raise
except ImportError as error:
    if is_out_of_memory(error):
        raise MemoryError from error
    # onnxruntime and onnxruntime-gpu share a folder: removing one leaves half of the other.
    raise MissingExtraError(
        f"ONNX Runtime is only partly installed ({first_line(error)}); pip install --force-reinstall --no-deps "
        "onnxruntime, or onnxruntime-gpu in its place"
    ) from None

# Its errors are exceptions as well; its log is coloured, and repeats them with addresses of its sources.
ort.set_default_logger_severity(4)

# All of its errors, which have no common base class except Exception.
ERRORS: tuple[type[Exception], ...] = tuple(
    kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)
)

# Unbounded, with ONNX Runtime's defaults for the rest.
_DEFAULTS = (
    "arena_extend_strategy initial_chunk_size_bytes max_dead_bytes_per_chunk initial_growth_chunk_size_bytes"
)
_ARENA = {"max_mem": 0, **dict.fromkeys(_DEFAULTS.split(), -1)}
ort.create_and_register_allocator(
    ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT),
    ort.OrtArenaCfg(_ARENA),
)

__all__ = ["ERRORS", "ort"]
