"""Where this project writes for a user, by default and by two environment variables.

    $VOXCPM_COREML_CACHE     one folder for everything: compiled/, lowered/, verified/, measured/,
                             bundles/, voices/, jobs/
    $VOXCPM_COREML_VOICES    the folder of the voices alone

Without them: the platform's user cache and user data folders. A variable that is empty counts as not set.
"""

from __future__ import annotations

import os
from pathlib import Path

from voxcpm_constants.errors import InputError

CACHE_VARIABLE = "VOXCPM_COREML_CACHE"
VOICES_VARIABLE = "VOXCPM_COREML_VOICES"
_APPLICATION = "voxcpm-coreml"


def cache_folder(kind: str) -> Path:
    """A cache folder, which need not exist yet. kind: "compiled", "lowered", "verified", "measured" or "bundles".

    Raises InputError where the variable names a file.
    """
    chosen = _chosen(CACHE_VARIABLE)
    if chosen is not None:
        return chosen / kind
    import platformdirs  # only where no variable decides: it costs time at every start

    return Path(platformdirs.user_cache_dir(_APPLICATION)) / kind


def voices_folder() -> Path:
    """The folder of the user's voices. It need not exist yet. Raises InputError where a variable names a file."""
    chosen = _chosen(VOICES_VARIABLE)
    return _data_folder("voices") if chosen is None else chosen


def jobs_folder() -> Path:
    """The folder of a server's jobs. It need not exist yet. Raises InputError where the variable names a file."""
    return _data_folder("jobs")


def _data_folder(kind: str) -> Path:
    everything = _chosen(CACHE_VARIABLE)
    if everything is not None:
        return everything / kind
    import platformdirs

    return Path(platformdirs.user_data_dir(_APPLICATION)) / kind


def _chosen(variable: str) -> Path | None:
    """The folder that an environment variable names."""
    if not (value := os.environ.get(variable, "").strip()):
        return None
    try:
        folder = Path(value).expanduser()
    except RuntimeError:
        raise InputError(f"{variable}={value}: there is no such user; name a folder") from None
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{variable}={value}: expected a folder, but it is a file; name another or unset it")
    return folder.absolute()
