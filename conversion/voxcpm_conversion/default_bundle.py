"""The voice that comes along: a small trained checkpoint in this package, converted when it is first asked for."""

from __future__ import annotations

import hashlib
from importlib.metadata import version
from pathlib import Path

import platformdirs
from filelock import FileLock

from voxcpm_constants.manifest import MANIFEST_FILE
from voxcpm_constants.step_models import Precision, StepSizes
from voxcpm_conversion.checkpoint import Checkpoint
from voxcpm_conversion.convert import convert

DEFAULT_CHECKPOINT = Path(__file__).with_name("default_checkpoint")
SIZES = StepSizes(kv_length=512)
PRECISIONS: tuple[Precision, ...] = ("fp16", "int8")


def default_bundle() -> Path:
    """The bundle's folder, in the user's cache directory; conversion takes about half a minute, once.

    Raises what `convert` raises, and ModuleNotFoundError without PyTorch.
    """
    cache = Path(platformdirs.user_cache_dir("voxcpm-coreml")) / "bundles"
    folder = cache / _key()
    cache.mkdir(parents=True, exist_ok=True)
    # Several processes may ask for it first.
    with FileLock(cache / f"{folder.name}.lock"):
        if not (folder / MANIFEST_FILE).is_file():
            convert(Checkpoint.open(str(DEFAULT_CHECKPOINT)), folder, precisions=PRECISIONS, sizes=SIZES)
    return folder


def _key() -> str:
    """Changes with the checkpoint, this package's conversion and the tools that it converts with."""
    digest = hashlib.sha256("|".join(version(p) for p in ("coremltools", "torch", "voxcpm-coreml")).encode())
    sources = Path(__file__).parent.rglob("*.py")
    for file in sorted([*sources, *(file for file in DEFAULT_CHECKPOINT.iterdir() if file.is_file())]):
        digest.update(file.name.encode())
        digest.update(file.read_bytes())
    return f"default-{digest.hexdigest()[:16]}"
