"""ONNX Runtime sessions of lowered graphs on the CPU, with memory-mapped weights."""

from __future__ import annotations

import base64
import errno
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from voxcpm_constants.errors import first_line
from voxcpm_runtime.backends.machine import fair_threads
from voxcpm_runtime.backends.portable.lowered import Lowered, Mode
from voxcpm_runtime.backends.portable.onnx_runtime import ERRORS, ort
from voxcpm_runtime.backends.portable.package import PackageError, map_weights
from voxcpm_runtime.backends.portable.prepared import is_worth_preparing, open_prepared

_ERRORS_ONLY = 3
"""ONNX Runtime's log level."""

# Earlier versions do not know `spin_duration_us`, and would spin until the next call.
_BOUNDED_SPINNING = tuple(map(int, ort.__version__.split(".")[:2])) >= (1, 26)
_SPIN_MICROSECONDS = "50"

_NO_MEMORY = ("std::bad_alloc", "bad allocation", "Failed to allocate memory", "Cannot allocate memory")
_NO_THREAD = "pthread_create failed"
"""ONNX Runtime's messages for refused system resources."""


@contextmanager
def refusal_named(package: Path) -> Iterator[None]:
    """A context in which an error of ONNX Runtime becomes a PackageError: its graph was lowered from the package.

    If the system refuses memory or a thread, it becomes a MemoryError or OSError, as Python's own refusals are.
    """
    try:
        yield
    # A thread that cannot be started is none of ERRORS, nor is what fails in a call with bound inputs.
    except Exception as error:
        if any(sign in str(error) for sign in _NO_MEMORY):
            raise MemoryError from error
        if _NO_THREAD in str(error):
            raise OSError(errno.EAGAIN, "the system cannot start more threads") from error
        # Subclasses are Python's own (RecursionError) and mean something else.
        if not isinstance(error, ERRORS) and type(error) is not RuntimeError:
            raise
        raise PackageError(
            f"{package} is damaged, or its entry in the cache: ONNX Runtime refuses it ({first_line(error)}); convert "
            "again, or clear the cache"
        ) from error


def mapped_weights(package: Path, lowered: Lowered) -> list[ort.OrtValue]:
    """The memory-mapped weights, which must stay alive as long as the session."""
    if not lowered.weights:
        return []
    mapped = map_weights(package)
    if mapped is None or mapped.size != lowered.weight_file_size:
        raise PackageError(f"{package}: weight.bin is missing or was changed")
    return [ort.OrtValue.ortvalue_from_numpy(ref.view(mapped)) for ref in lowered.weights]


def open_on_processor(
    package: Path, lowered: Lowered, mode: Mode, threads: int | None, *, prepared_key: str | None = None
) -> tuple[ort.InferenceSession, list[ort.OrtValue]]:
    """A session on the processor, and the weights that must stay alive as long as the session.

    prepared_key: the function's identity, under which a prepared form is saved; None for none.
    """
    values = mapped_weights(package, lowered)
    # Faithful mode folds constants, so that fp16 weights are unpacked once; it merges nothing across a rounding.
    levels = ort.GraphOptimizationLevel
    level = levels.ORT_ENABLE_BASIC if mode == "faithful" else levels.ORT_ENABLE_ALL

    def options() -> ort.SessionOptions:
        options = session_options(level, threads)
        options.add_session_config_entry("session.use_env_allocators", "1")  # the arena of onnx_runtime.py
        # Planning which tensors share memory takes a time that grows with the square of the graph: most of what opening
        # a language model took. Without a plan the allocator reuses freed memory; peak and speed are the same.
        options.enable_mem_reuse = False
        return options

    def session(model: str | bytes, options: ort.SessionOptions) -> ort.InferenceSession:
        # A saved form has its own weights.
        if isinstance(model, bytes) and values:
            options.add_external_initializers([ref.name for ref in lowered.weights], values)
        return ort.InferenceSession(model, options, ["CPUExecutionProvider"])

    if prepared_key is not None and mode == "plain" and is_worth_preparing(lowered):
        prepared = open_prepared(package, prepared_key, lowered, options, session)
        if prepared is not None:
            return prepared, []
    return session(lowered.model, options()), values


def session_options(level: ort.GraphOptimizationLevel, threads: int | None) -> ort.SessionOptions:
    """ONNX Runtime's options. threads: of one operation; None for this process's share of the machine."""
    options = ort.SessionOptions()
    options.log_severity_level = _ERRORS_ONLY
    options.graph_optimization_level = level
    # Several step models run, each with threads of its own. Idle threads that spin for long take the cores from the
    # model at work, and from other programs: up to tenfold time on a busy machine. Spinning from one operation to the
    # next saves a sixth (TRIALS.md).
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(_BOUNDED_SPINNING)))
    options.add_session_config_entry("session.intra_op.spin_duration_us", _SPIN_MICROSECONDS)
    if (threads := threads or fair_threads()) is not None:
        options.intra_op_num_threads = threads
    return options


_ROWS, _INNER, _UNSIGNED, _SIGNED = 4, 64, 255, 127
# "rows" (_ROWS, _INNER) uint8 times a weight (_INNER, 16) of int8 _SIGNED, by MatMulIntegerToFloat. It is a literal
# because a usual start does not import onnx.
_PRODUCT = base64.b64decode(
    "CAk65AEKNgoFc2hhcGUSB3dlaWdodHMiD0NvbnN0YW50T2ZTaGFwZSoTCgV2YWx1ZSoHCAEQA0oBf6ABBApHCgRyb3dzCgd3ZWlnaHRzCgNvbmUK"
    "A29uZRIHcHJvZHVjdCIUTWF0TXVsSW50ZWdlclRvRmxvYXQ6DWNvbS5taWNyb3NvZnQSACodCAIQB0IFc2hhcGVKEEAAAAAAAAAAEAAAAAAAAAAq"
    "DRABQgNvbmVKBAAAgD9aFgoEcm93cxIOCgwIAhIICgIIBAoCCEBiGQoHcHJvZHVjdBIOCgwIARIICgIIBAoCCBBCBAoAEBRCEQoNY29tLm1pY3Jv"
    "c29mdBAB"
)


@functools.cache
def has_exact_signed_products() -> bool:
    """Whether this processor multiplies unsigned by signed bytes exactly.

    ONNX Runtime's fastest integer kernels (VNNI, AMX, and ARM's dot products) do. On x86 without VNNI the same product
    adds pairs in 16 bits, which saturate: 255 · 127 twice is 64770, above 32767.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(_PRODUCT, options, providers=["CPUExecutionProvider"])
    (product,) = session.run(None, {"rows": np.full((_ROWS, _INNER), _UNSIGNED, np.uint8)})
    return bool(np.all(product == _INNER * _UNSIGNED * _SIGNED))
