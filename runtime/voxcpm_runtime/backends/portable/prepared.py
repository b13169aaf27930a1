"""Large integer models in the form that ONNX Runtime makes of them when it opens them, saved once for this machine.

Opening a graph folds its constants and packs its weights for the processor's kernels: seconds, and memory that no other
process shares. ONNX Runtime can save what it made, and map the file at the next start. An entry is a folder in the
user's cache, beside the compiled packages of Core ML. It is for one processor, and never travels.
"""

from __future__ import annotations

import errno
import hashlib
import math
import os
import platform
import shutil
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from voxcpm_runtime.backends.compiled_packages import CompiledPackage, mark
from voxcpm_runtime.backends.machine import chip

from .lowered import Lowered, Mode, WeightRef
from .onnx_runtime import errors, ort

PREPARED = ".ort"
MODEL = "model.onnx"
WEIGHTS = "weights.bin"

# Below this, opening takes a fraction of a second, and saving would only make the first start later.
_LEAST_BYTES = 32 << 20
# What an entry takes on disk, as a multiple of the weights: folded and packed, and room beside it.
_DISK_FACTOR = 4

# Preparing takes several times the weights' memory, so one at a time does.
_PREPARING = threading.Lock()

Session = Callable[[str | bytes, ort.SessionOptions], ort.InferenceSession]
"""session(model, options): a serialised graph, or the path of a saved one, opened."""

_SAVING = {
    "session.optimized_model_external_initializers_file_name": WEIGHTS,
    "session.optimized_model_external_initializers_min_size_in_bytes": "1024",
    "session.save_external_prepacked_constant_initializers": "1",
}

# ONNX Runtime's errors have no base class but Exception.
_ERRORS = (
    errors.Fail,
    errors.InvalidArgument,
    errors.InvalidGraph,
    errors.InvalidProtobuf,
    errors.NoSuchFile,
    errors.RuntimeException,
)


def is_worth_preparing(lowered: Lowered, mode: Mode) -> bool:
    """Whether a graph has enough weights, in integers: as float32 they would take several times the package's size."""
    integers = [ref for ref in lowered.weights if np.dtype(ref.dtype).kind in "iu"]
    return mode == "plain" and _bytes(integers) >= _LEAST_BYTES


def open_prepared(
    package: Path, key: str, lowered: Lowered, options: Callable[[], ort.SessionOptions], session: Session
) -> ort.InferenceSession | None:
    """A session of the saved form, which is made now if there is none; None if that cannot be done.

    key: identifies the function of the package. options: makes the session's options.
    """

    def prepare(_: Path, entry: Path) -> None:
        if shutil.disk_usage(entry.parent).free < _DISK_FACTOR * _bytes(lowered.weights):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        entry.mkdir()
        saving = options()
        saving.optimized_model_filepath = str(entry / MODEL)
        for name, value in _SAVING.items():
            saving.add_session_config_entry(name, value)
        with _PREPARING:
            session(lowered.model, saving)

    form = CompiledPackage(package, _digest(key), prepare, compiler=_maker(lowered), suffix=PREPARED)
    try:
        entry, _ = form.cached()
        try:
            return session(str(entry / MODEL), options())
        except _ERRORS:
            entry, _ = form.cached(damaged=mark(entry))
            return session(str(entry / MODEL), options())
    except (OSError, NotImplementedError, *_ERRORS):
        return None


def _maker(lowered: Lowered) -> str:
    """What else the form depends on: the graph, ONNX Runtime, and the processor with its instructions."""
    instructions = np.show_config(mode="dicts")["SIMD Extensions"]
    graph = hashlib.sha256(lowered.model).hexdigest()
    return _digest(f"{graph}|{ort.__version__}|{platform.machine()}|{chip()}|{instructions}")[:16]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _bytes(weights: Iterable[WeightRef]) -> int:
    return sum(math.prod(ref.shape) * np.dtype(ref.dtype).itemsize for ref in weights)
