"""Large integer models as optimised by ONNX Runtime, saved once for this machine.

Opening a graph folds its constants and packs its weights for the processor's kernels: seconds, and memory that no other
process shares. ONNX Runtime can save the result, and map the file at the next start. An entry is a folder in the user's
cache, next to the compiled packages of Core ML. It is for one processor, and never travels.
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
from voxcpm_runtime.backends.compilation import DIGITS, CompiledPackage, mark
from voxcpm_runtime.backends.machine import chip, cpu_features
from voxcpm_runtime.backends.portable.lowered import Lowered, WeightRef
from voxcpm_runtime.backends.portable.onnx_runtime import ERRORS, ort
from voxcpm_runtime.bundle.verified_files import RECORDS_FILE, check_recorded, record_files

PREPARED = ".ort"
MODEL = "model.onnx"
WEIGHTS = "weights.bin"
_COMPILER = "onnxruntime"
# The user may have files of their own in the cache folder. A name with a leading dot is unfinished.
_OWN = re.compile(rf"\.?[0-9a-f]{{{DIGITS}}}-{_COMPILER}{re.escape(PREPARED)}")
_DAMAGED: tuple[type[Exception], ...] = (BundleError, *ERRORS)
_NOT_SAVED: tuple[type[Exception], ...] = (OSError, NotImplementedError, *_DAMAGED)

# Below this, opening takes a fraction of a second, and saving would only make the first start later.
_MIN_BYTES = 32 << 20
_KEPT_SECONDS, _UNFINISHED_SECONDS = 30 * 86400, 86400
"""How long unused forms, and temp files of killed processes, are kept."""
# What an entry takes on disk, as a multiple of the weights: folded and packed, and some room.
_DISK_FACTOR = 4
# Preparing takes several times the weights' memory, so one at a time does.
_PREPARING = threading.Lock()
_SAVING = {
    "session.optimized_model_external_initializers_file_name": WEIGHTS,
    "session.optimized_model_external_initializers_min_size_in_bytes": "1024",
    "session.save_external_prepacked_constant_initializers": "1",
}

Session = Callable[[str | bytes, ort.SessionOptions], ort.InferenceSession]
"""session(model, options): a serialised graph, or the path of a saved one, opened."""


def is_worth_preparing(lowered: Lowered) -> bool:
    """Whether a graph has enough weights in integers: as float32 they would take several times the package's size."""
    return _bytes(ref for ref in lowered.weights if np.dtype(ref.dtype).kind in "iu") >= _MIN_BYTES


def open_prepared(
    package: Path, key: str, lowered: Lowered, options: Callable[[], ort.SessionOptions], session: Session
) -> ort.InferenceSession | None:
    """A session of the saved form, which is made now if there is none; None, with a warning, if that is impossible.

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

    def opened(entry: Path) -> ort.InferenceSession:
        check_recorded(entry)
        with contextlib.suppress(OSError):
            os.utime(entry / RECORDS_FILE)
        found = session(str(entry / MODEL), options())
        for values, expected in (
            (found.get_inputs(), lowered.inputs),
            (found.get_outputs(), lowered.outputs),
        ):
            if {each.name for each in values} != {each.name for each in expected}:
                raise BundleError(f"{entry / MODEL}: it was prepared from another graph")
        return found

    graph = hashlib.sha256(lowered.model).hexdigest()
    made_by = f"{graph}|{ort.__version__}|{platform.machine()}|{chip()}|{cpu_features()}"
    digest = hashlib.sha256(f"{key}|{made_by}".encode()).hexdigest()
    form = CompiledPackage(package, digest, prepare, compiler=_COMPILER, suffix=PREPARED)
    try:
        entry, _ = form.cached()
        try:
            return opened(entry)
        except _DAMAGED:
            entry, _ = form.cached(damaged=mark(entry))
            return opened(entry)
    except _NOT_SAVED as error:
        reason = os_reason(error) if isinstance(error, OSError) else first_line(error)
        warnings.warn(
            f"{cache_folder('compiled')}: a step model's prepared form cannot be saved there ({reason}), so that every "
            f"start takes longer and more memory; free space, or set {CACHE_VARIABLE} to another folder",
            stacklevel=2,
        )
        return None


def _remove_unused(folder: Path) -> None:
    for entry in folder.glob(f"*{PREPARED}"):
        if _OWN.fullmatch(entry.name):
            unfinished = entry.name.startswith(".")
            used = entry if unfinished else entry / RECORDS_FILE
            with contextlib.suppress(OSError):
                age = time.time() - used.stat().st_mtime
                if age > (_UNFINISHED_SECONDS if unfinished else _KEPT_SECONDS):
                    shutil.rmtree(entry, ignore_errors=True)


def _bytes(weights: Iterable[WeightRef]) -> int:
    return sum(math.prod(ref.shape) * np.dtype(ref.dtype).itemsize for ref in weights)
