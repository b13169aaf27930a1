"""ONNX Runtime sessions of lowered graphs on the CPU, with memory-mapped weights.

Opening a large integer model folds its constants and packs its weights for the processor's kernels, which takes seconds
and unshared memory. So ONNX Runtime saves the *prepared* model once per machine, in the user's cache next to Core ML's
compiled packages, and later starts memory-map it.
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
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from voxcpm_constants.errors import BundleError, first_line, os_reason, warn
from voxcpm_constants.user_folders import CACHE_VARIABLE, cache_folder
from voxcpm_runtime.backends.compilation import CompiledPackage, mark
from voxcpm_runtime.backends.machine import chip, cpu_features, fair_threads
from voxcpm_runtime.backends.portable.kernels import kernel_library
from voxcpm_runtime.backends.portable.lowered import Lowered, Mode
from voxcpm_runtime.backends.portable.onnx_runtime import ERRORS, ort
from voxcpm_runtime.backends.portable.package import PackageError, map_weights
from voxcpm_runtime.bundle.verified_files import check_recorded, record_files

_PROVIDERS = ["CPUExecutionProvider"]

# Earlier versions lack `spin_duration_us`, and would spin until the next call.
_LIMITS_SPINNING = tuple(map(int, ort.__version__.split(".")[:2])) >= (1, 26)
_SPIN_MICROSECONDS = "50"

_NO_MEMORY = ("std::bad_alloc", "bad allocation", "Failed to allocate memory", "Cannot allocate memory")
_NO_THREAD = "pthread_create failed"
"""ONNX Runtime's messages for lack of system resources."""

MODEL, WEIGHTS = "model.onnx", "weights.bin"
# Minimum bytes of integer weights: below, opening is fast enough.
_MIN_PREPARED_BYTES = 32 << 20
_LOAD_ERRORS: tuple[type[Exception], ...] = (BundleError, *ERRORS)
_SAVE_ERRORS: tuple[type[Exception], ...] = (OSError, NotImplementedError, *_LOAD_ERRORS)
# Free disk space needed, as a multiple of the weights, for folded and packed ones and some margin.
_DISK_FACTOR = 4
# Preparing takes several times the weights' memory, so one at a time.
_PREPARE_LOCK = threading.Lock()
_SAVE_OPTIONS = {
    "session.optimized_model_external_initializers_file_name": WEIGHTS,
    "session.optimized_model_external_initializers_min_size_in_bytes": "1024",
    "session.save_external_prepacked_constant_initializers": "1",
}


@contextlib.contextmanager
def session_errors(package: Path) -> Iterator[None]:
    """A context in which errors of ONNX Runtime become PackageError, MemoryError or OSError."""
    try:
        yield
    # Neither the failure to start a thread nor errors with bound inputs are in ERRORS.
    except Exception as error:
        if any(sign in str(error) for sign in _NO_MEMORY):
            raise MemoryError from error
        if _NO_THREAD in str(error):
            raise OSError(errno.EAGAIN, "the system cannot start more threads") from error
        # Not its subclasses, which are Python's own (RecursionError).
        if not isinstance(error, ERRORS) and type(error) is not RuntimeError:
            raise
        raise PackageError(
            f"{package} or its cache entry is damaged: ONNX Runtime rejects it ({first_line(error)}); convert again, "
            "or clear the cache"
        ) from error


def open_on_processor(
    package: Path, lowered: Lowered, mode: Mode, threads: int | None, *, prepared_key: str | None = None
) -> tuple[ort.InferenceSession, list[ort.OrtValue]]:
    """A session on the processor, and the weights that must stay alive as long as the session.

    prepared_key: cache key of a large integer model's prepared form; None not to prepare it.
    """
    integers = _weight_bytes(lowered, "iu")
    if prepared_key is not None and mode == "plain" and integers >= _MIN_PREPARED_BYTES:
        prepared = _open_prepared(package, prepared_key, lowered, threads)
        if prepared is not None:
            return prepared, []
    return _open_lowered(package, lowered, _processor_options(lowered, mode, threads))


def _open_lowered(
    package: Path, lowered: Lowered, options: ort.SessionOptions
) -> tuple[ort.InferenceSession, list[ort.OrtValue]]:
    values: list[ort.OrtValue] = []
    if lowered.weights:
        mapped = map_weights(package)
        if mapped.size != lowered.weight_file_size:
            raise PackageError(f"{package}: weight.bin is missing or was changed")
        values = [ort.OrtValue.ortvalue_from_numpy(ref.view(mapped)) for ref in lowered.weights]
        options.add_external_initializers([ref.name for ref in lowered.weights], values)
    return _session(lowered.model, options), values


def _session(model: bytes | str, options: ort.SessionOptions) -> ort.InferenceSession:
    # Its fallback to this very provider prints lines on standard output.
    return ort.InferenceSession(model, options, _PROVIDERS, enable_fallback=0)


def _open_prepared(
    package: Path, key: str, lowered: Lowered, threads: int | None
) -> ort.InferenceSession | None:
    """A session of the prepared model, which is saved first if missing; None, with a warning, if that fails."""

    def prepare(_: Path, entry: Path) -> None:
        if shutil.disk_usage(entry.parent).free < _DISK_FACTOR * _weight_bytes(lowered):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        entry.mkdir()
        options = _processor_options(lowered, "plain", threads)
        options.optimized_model_filepath = str(entry / MODEL)
        for name, value in _SAVE_OPTIONS.items():
            options.add_session_config_entry(name, value)
        with _PREPARE_LOCK:
            _open_lowered(package, lowered, options)
        record_files(entry)

    def opened(entry: Path) -> ort.InferenceSession:
        check_recorded(entry)
        return _session(str(entry / MODEL), _processor_options(lowered, "plain", threads))

    graph = hashlib.sha256(lowered.model).hexdigest()
    made_by = f"{graph}|{ort.__version__}|{platform.machine()}|{chip()}|{cpu_features()}"
    digest, maker = (hashlib.sha256(text.encode()).hexdigest() for text in (key, made_by))
    # This removes the form of the same function by another ONNX Runtime.
    form = CompiledPackage(package, digest, prepare, f"{maker[:16]}.ort")
    try:
        entry, _ = form.cached()
        try:
            return opened(entry)
        except _LOAD_ERRORS:
            return opened(form.cached(damaged=mark(entry))[0])
    except _SAVE_ERRORS as error:
        reason = os_reason(error) if isinstance(error, OSError) else first_line(error)
        warn(
            f"{cache_folder('compiled')}: a prepared step model cannot be saved ({reason}), so every start takes "
            f"longer and more memory; free space, or set {CACHE_VARIABLE} to another folder"
        )
        return None


def _weight_bytes(lowered: Lowered, kinds: str = "iuf") -> int:
    return sum(
        math.prod(ref.shape) * np.dtype(ref.dtype).itemsize
        for ref in lowered.weights if np.dtype(ref.dtype).kind in kinds
    )  # fmt: skip


def _processor_options(lowered: Lowered, mode: Mode, threads: int | None) -> ort.SessionOptions:
    """ONNX Runtime's options. threads: per operation; None for this process's share of the machine."""
    options, levels = ort.SessionOptions(), ort.GraphOptimizationLevel
    # In faithful mode, fold constants, so that fp16 weights are unpacked once, but fuse nothing across a rounding.
    faithful = mode == "faithful"
    options.graph_optimization_level = levels.ORT_ENABLE_BASIC if faithful else levels.ORT_ENABLE_ALL
    options.add_session_config_entry("session.use_env_allocators", "1")  # the arena of onnx_runtime.py
    # Memory planning is quadratic in the size of the graph, and took most of the time to open a language model. Without
    # it the allocator reuses freed memory; peak and speed are the same.
    options.enable_mem_reuse = False
    # Each step model has its own threads. Idle threads that spin for long take cores from the running model and from
    # other programs: up to ten times slower on a busy machine. Spinning between operations saves a sixth
    # (docs/trials-archive.md, faster).
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(_LIMITS_SPINNING)))
    options.add_session_config_entry("session.intra_op.spin_duration_us", _SPIN_MICROSECONDS)
    if (threads := threads or fair_threads()) is not None:
        options.intra_op_num_threads = threads
    if lowered.kernels and (library := kernel_library()) is not None:
        options.register_custom_ops_library(str(library))
    return options


_ROWS, _INNER, _UNSIGNED, _SIGNED = 4, 64, 255, 127
# An ONNX model: "rows" (_ROWS, _INNER) uint8 times a weight (_INNER, 16) of int8 _SIGNED, by MatMulIntegerToFloat. A
# literal, because onnx is usually not imported.
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
    session = _session(_PRODUCT, options)
    (product,) = session.run(None, {"rows": np.full((_ROWS, _INNER), _UNSIGNED, np.uint8)})
    return bool(np.all(product == _INNER * _UNSIGNED * _SIGNED))
