"""Large integer models in the form that ONNX Runtime makes of them when it opens them, saved once for this machine.

Opening a graph folds its constants and packs its weights for the processor's kernels: seconds, and memory that no other
process shares. ONNX Runtime can save what it made, and map the file at the next start. An entry is a folder in the
user's cache, beside the compiled packages of Core ML. It is for one processor, and never travels.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import math
import os
import platform
import re
import shutil
import threading
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from voxcpm_constants.errors import BundleError, first_line, os_reason
from voxcpm_constants.user_folders import CACHE_VARIABLE, cache_folder
from voxcpm_runtime.backends.compiled_packages import DIGITS, CompiledPackage, mark
from voxcpm_runtime.backends.machine import chip, cpu_features
from voxcpm_runtime.backends.portable.lowered import Lowered, Mode, WeightRef
from voxcpm_runtime.backends.portable.onnx_runtime import ERRORS, ort
from voxcpm_runtime.bundle.verified_files import RECORDS_FILE, check_recorded, record_files

PREPARED = ".ort"
_COMPILER = "onnxruntime"
# Whoever names a cache may have files of their own in it. What begins with a dot is unfinished.
_OWN = re.compile(rf"\.?[0-9a-f]{{{DIGITS}}}-{_COMPILER}{re.escape(PREPARED)}")
MODEL = "model.onnx"
WEIGHTS = "weights.bin"
_DAMAGED: tuple[type[Exception], ...] = (BundleError, *ERRORS)
_NOT_SAVED: tuple[type[Exception], ...] = (OSError, NotImplementedError, *_DAMAGED)

# Below this, opening takes a fraction of a second, and saving would only make the first start later.
_MIN_BYTES = 32 << 20
# How long a form is kept that nothing opens.
_KEPT_DAYS = 30
_DAY_SECONDS = 86400
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


def is_worth_preparing(lowered: Lowered, mode: Mode) -> bool:
    """Whether a graph has enough weights, in integers: as float32 they would take several times the package's size."""
    integers = [ref for ref in lowered.weights if np.dtype(ref.dtype).kind in "iu"]
    return mode == "plain" and _bytes(integers) >= _MIN_BYTES


def open_prepared(
    package: Path, key: str, lowered: Lowered, options: Callable[[], ort.SessionOptions], session: Session
) -> ort.InferenceSession | None:
    """A session of the saved form, which is made now if there is none; None if that cannot be done.

    key: identifies the function of the package. options: makes the session's options.
    """

    def prepare(_: Path, entry: Path) -> None:
        if shutil.disk_usage(entry.parent).free < _DISK_FACTOR * _bytes(lowered.weights):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        _remove_unused(entry.parent)
        entry.mkdir()
        saving = options()
        saving.optimized_model_filepath = str(entry / MODEL)
        for name, value in _SAVING.items():
            saving.add_session_config_entry(name, value)
        with _PREPARING:
            session(lowered.model, saving)
        record_files(entry)

    digest = _digest(f"{key}|{_maker(lowered)}")
    form = CompiledPackage(package, digest, prepare, compiler=_COMPILER, suffix=PREPARED)
    try:
        entry, _ = form.cached()
        try:
            return _opened(entry, lowered, options, session)
        except _DAMAGED:
            entry, _ = form.cached(damaged=mark(entry))
            return _opened(entry, lowered, options, session)
    except _NOT_SAVED as error:
        reason = os_reason(error) if isinstance(error, OSError) else first_line(error)
        warnings.warn(
            f"{cache_folder('compiled')}: a step model's prepared form cannot be saved there ({reason}), so that every "
            f"start takes longer and more memory; free space, or set {CACHE_VARIABLE} to another folder",
            stacklevel=2,
        )
        return None


def _opened(
    entry: Path, lowered: Lowered, options: Callable[[], ort.SessionOptions], session: Session
) -> ort.InferenceSession:
    """A session of an entry. Its files are hashed once. Raises BundleError where they have changed, and for the form of
    another graph.
    """
    check_recorded(entry)
    with contextlib.suppress(OSError):
        os.utime(entry / RECORDS_FILE)
    opened = session(str(entry / MODEL), options())
    for found, expected in ((opened.get_inputs(), lowered.inputs), (opened.get_outputs(), lowered.outputs)):
        if {each.name for each in found} != {each.name for each in expected}:
            raise BundleError(f"{entry / MODEL}: it is the form of another graph")
    return opened


def _remove_unused(folder: Path) -> None:
    """Forms that nothing has opened for a month, and what a killed process has left for a day."""
    for entry in folder.glob(f"*{PREPARED}"):
        if not _OWN.fullmatch(entry.name):
            continue
        used, days = (entry, 1) if entry.name.startswith(".") else (entry / RECORDS_FILE, _KEPT_DAYS)
        with contextlib.suppress(OSError):
            if time.time() - used.stat().st_mtime > days * _DAY_SECONDS:
                shutil.rmtree(entry, ignore_errors=True)


def _maker(lowered: Lowered) -> str:
    """What else the form depends on: the graph, ONNX Runtime, and the processor with its instructions."""
    graph = hashlib.sha256(lowered.model).hexdigest()
    return f"{graph}|{ort.__version__}|{platform.machine()}|{chip()}|{cpu_features()}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _bytes(weights: Iterable[WeightRef]) -> int:
    return sum(math.prod(ref.shape) * np.dtype(ref.dtype).itemsize for ref in weights)
