"""The bundle to use if none is named; the function that makes it is found by entry point, as commands are."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path

from voxcpm_constants.errors import InputError

GROUP = "voxcpm_coreml.default_bundle"


def default_bundle() -> Path:
    """Folder of the default bundle, which the first call on a machine converts. Raises InputError if that fails."""
    makers = tuple(entry_points(group=GROUP))
    if not makers:
        raise InputError("no bundle was given, and this installation has no built-in voice; name a bundle")
    try:
        return Path(makers[0].load()())
    except ModuleNotFoundError as error:
        raise InputError(
            f"no bundle was given, and making the default one needs {error.name}: name a bundle, "
            'or install it with: pip install "voxcpm-coreml[convert]"'
        ) from None
