"""The bundle that is spoken with when none is named; who makes it is found by entry point, as commands are."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path

from voxcpm_constants.errors import InputError

GROUP = "voxcpm_coreml.default_bundle"


def default_bundle() -> Path:
    """Its folder; the first call on a machine converts it. Raises InputError where it cannot be made."""
    makers = tuple(entry_points(group=GROUP))
    if not makers:
        raise InputError("no bundle was given, and none comes along with this installation; name one")
    try:
        return Path(makers[0].load()())
    except ModuleNotFoundError as error:
        raise InputError(
            f"no bundle was given, and making the default one needs {error.name}: name a bundle, "
            'or install it with: pip install "voxcpm-coreml[convert]"'
        ) from None
