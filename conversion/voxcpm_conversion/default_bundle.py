"""The built-in voice: a small trained checkpoint in this package, converted to a bundle when it is first needed."""

from __future__ import annotations

import hashlib
from importlib.metadata import version
from pathlib import Path

from filelock import FileLock

from voxcpm_constants.errors import InputError, os_reason
from voxcpm_constants.manifest import MANIFEST_FILE
from voxcpm_constants.step_models import Precision, StepSizes
from voxcpm_constants.user_folders import CACHE_VARIABLE, cache_folder

DEFAULT_CHECKPOINT = Path(__file__).with_name("default_checkpoint")
SIZES = StepSizes(kv_length=512)
PRECISIONS: tuple[Precision, ...] = ("fp16", "int8")


def default_bundle() -> Path:
    """Folder of the built-in voice's bundle, in the user's cache directory.

    The first call converts the checkpoint, which takes about half a minute. Raises what `convert` raises, and
    ModuleNotFoundError if PyTorch is not installed.
    """
    cache = cache_folder("bundles")
    folder = cache / bundle_name()
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{cache}: the built-in voice's bundle cannot be written there ({os_reason(error)}); "
            f"set {CACHE_VARIABLE} to a folder that can be written"
        ) from None
    # Several processes may call this at the same time.
    with FileLock(cache / f"{folder.name}.lock"):
        if not (folder / MANIFEST_FILE).is_file():
            # Two seconds of importing PyTorch, which a bundle that is there already does not need.
            from voxcpm_conversion.checkpoint import Checkpoint
            from voxcpm_conversion.convert import convert

            convert(Checkpoint.open(str(DEFAULT_CHECKPOINT)), folder, precisions=PRECISIONS, sizes=SIZES)
    return folder


def bundle_name() -> str:
    """A name that changes with the checkpoint, the code of this package and the versions of its tools."""
    digest = hashlib.sha256("|".join(version(p) for p in ("coremltools", "torch", "voxcpm-coreml")).encode())
    sources = Path(__file__).parent.rglob("*.py")
    for file in sorted([*sources, *(file for file in DEFAULT_CHECKPOINT.iterdir() if file.is_file())]):
        digest.update(file.name.encode())
        digest.update(file.read_bytes())
    return f"default-{digest.hexdigest()[:16]}"
