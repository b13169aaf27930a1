"""ONNX Runtime sessions of lowered graphs on the CPU, with memory-mapped weights.

Opening a large integer model folds its constants and packs its weights for the processor's kernels: seconds, and memory
that no other process shares. So ONNX Runtime saves the *prepared* model once, for this machine, in the user's cache
next to Core ML's compiled packages, and the next start maps that file.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import functools
import hashlib
import math
import os
import platform
import shutil
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from voxcpm_constants.errors import BundleError, first_line, os_reason
from voxcpm_constants.user_folders import CACHE_VARIABLE, cache_folder
from voxcpm_runtime.backends.compilation import CompiledPackage, mark
from voxcpm_runtime.backends.machine import chip, cpu_features, fair_threads
from voxcpm_runtime.backends.portable.lowered import Lowered, Mode
from voxcpm_runtime.backends.portable.onnx_runtime import ERRORS, ort
from voxcpm_runtime.backends.portable.package import PackageError, map_weights
from voxcpm_runtime.bundle.verified_files import check_recorded, record_files

_PROVIDERS = ["CPUExecutionProvider"]
_ERRORS_ONLY = 3
"""ONNX Runtime's log level."""

# Earlier versions do not know `spin_duration_us`, and would spin until the next call.
_BOUNDED_SPINNING = tuple(map(int, ort.__version__.split(".")[:2])) >= (1, 26)
_SPIN_MICROSECONDS = "50"

_NO_MEMORY = ("std::bad_alloc", "bad allocation", "Failed to allocate memory", "Cannot allocate memory")
_NO_THREAD = "pthread_create failed"
"""ONNX Runtime's messages for refused system resources."""

MODEL, WEIGHTS = "model.onnx", "weights.bin"
# From this many bytes of integer weights on, opening takes seconds, and as float32 they would take far more memory.
_MIN_PREPARED_BYTES = 32 << 20
_DAMAGED: tuple[type[Exception], ...] = (BundleError, *ERRORS)
_NOT_SAVED: tuple[type[Exception], ...] = (OSError, NotImplementedError, *_DAMAGED)
# What one takes on disk, as a multiple of the weights: folded and packed, and some room.
_DISK_FACTOR = 4
# Preparing takes several times the weights' memory, so one at a time does.
_PREPARING = threading.Lock()
_SAVING = {
    "session.optimized_model_external_initializers_file_name": WEIGHTS,
    "session.optimized_model_external_initializers_min_size_in_bytes": "1024",
    "session.save_external_prepacked_constant_initializers": "1",
}


@contextlib.contextmanager
def refusal_named(package: Path) -> Iterator[None]:
    """A context in which an error of ONNX Runtime becomes a PackageError, or MemoryError or OSError as in Python."""
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

    prepared_key: the function's identity, under which a large integer model is prepared; None to prepare nothing.
    """
    integers = _weight_bytes(lowered, "iu")
    if prepared_key is not None and mode == "plain" and integers >= _MIN_PREPARED_BYTES:
        prepared = _open_prepared(package, prepared_key, lowered, threads)
        if prepared is not None:
            return prepared, []
    return _open_lowered(package, lowered, _processor_options(mode, threads))


def _open_lowered(
    package: Path, lowered: Lowered, options: ort.SessionOptions
) -> tuple[ort.InferenceSession, list[ort.OrtValue]]:
    values = mapped_weights(package, lowered)
    if values:
        options.add_external_initializers([ref.name for ref in lowered.weights], values)
    return ort.InferenceSession(lowered.model, options, _PROVIDERS), values


def _open_prepared(
    package: Path, key: str, lowered: Lowered, threads: int | None
) -> ort.InferenceSession | None:
    """A session of the prepared model, which is made now if there is none; None, with a warning, if that fails."""

    def prepare(_: Path, entry: Path) -> None:
        if shutil.disk_usage(entry.parent).free < _DISK_FACTOR * _weight_bytes(lowered):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        entry.mkdir()
        options = _processor_options("plain", threads)
        options.optimized_model_filepath = str(entry / MODEL)
        for name, value in _SAVING.items():
            options.add_session_config_entry(name, value)
        with _PREPARING:
            _open_lowered(package, lowered, options)
        record_files(entry)

    def opened(entry: Path) -> ort.InferenceSession:
        check_recorded(entry)
        return ort.InferenceSession(str(entry / MODEL), _processor_options("plain", threads), _PROVIDERS)

    graph = hashlib.sha256(lowered.model).hexdigest()
    made_by = f"{graph}|{ort.__version__}|{platform.machine()}|{chip()}|{cpu_features()}"
    digest, maker = (hashlib.sha256(text.encode()).hexdigest() for text in (key, made_by))
    # A form by another ONNX Runtime, of the same function, is removed.
    form = CompiledPackage(package, digest, prepare, f"{maker[:16]}.ort")
    try:
        entry, _ = form.cached()
        try:
            return opened(entry)
        except _DAMAGED:
            return opened(form.cached(damaged=mark(entry))[0])
    except _NOT_SAVED as error:
        reason = os_reason(error) if isinstance(error, OSError) else first_line(error)
        warnings.warn(
            f"{cache_folder('compiled')}: a step model's prepared form cannot be saved there ({reason}), so that every "
            f"start takes longer and more memory; free space, or set {CACHE_VARIABLE} to another folder",
            stacklevel=2,
        )
        return None


def _weight_bytes(lowered: Lowered, kinds: str = "iuf") -> int:
    dtypes = ((ref, np.dtype(ref.dtype)) for ref in lowered.weights)
    return sum(math.prod(ref.shape) * dtype.itemsize for ref, dtype in dtypes if dtype.kind in kinds)


def _processor_options(mode: Mode, threads: int | None) -> ort.SessionOptions:
    # Faithful mode folds constants, so that fp16 weights are unpacked once; it merges nothing across a rounding.
    levels = ort.GraphOptimizationLevel
    options = session_options(
        levels.ORT_ENABLE_BASIC if mode == "faithful" else levels.ORT_ENABLE_ALL, threads
    )
    options.add_session_config_entry("session.use_env_allocators", "1")  # the arena of onnx_runtime.py
    # Planning which tensors share memory takes a time that grows with the square of the graph: most of what opening
    # a language model took. Without a plan the allocator reuses freed memory; peak and speed are the same.
    options.enable_mem_reuse = False
    return options


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
    """Whether this processor multiplies unsigned by signed bytes exactly, as VNNI, AMX and ARM's dot products do.

    On x86 without VNNI the product adds pairs in 16 bits, which saturate: 255 · 127 twice is 64770, above 32767.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(_PRODUCT, options, providers=["CPUExecutionProvider"])
    (product,) = session.run(None, {"rows": np.full((_ROWS, _INNER), _UNSIGNED, np.uint8)})
    return bool(np.all(product == _INNER * _UNSIGNED * _SIGNED))
