"""The user's cache and data folders, and the environment variables that override them.

    $VOXCPM_COREML_CACHE     one folder for everything: compiled/, lowered/, verified/, measured/,
                             bundles/, voices/, jobs/
    $VOXCPM_COREML_VOICES    the folder of voices only

Defaults are the platform's user cache and data folders. An empty variable counts as unset.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from voxcpm_constants.errors import InputError

CACHE_VARIABLE = "VOXCPM_COREML_CACHE"
VOICES_VARIABLE = "VOXCPM_COREML_VOICES"
DEFAULT_VOICE = "default"  # The name of the checkpoint's own voice, which no stored voice may have
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def cache_folder(kind: str) -> Path:
    """A cache folder, such as "compiled", which may not exist yet. Raises InputError if the variable names a file."""
    return _folder(kind, "user_cache_dir")


def voices_folder() -> Path:
    """The folder of voices, which may not exist yet. Raises InputError if a variable names a file."""
    return _from_environment(VOICES_VARIABLE) or _folder("voices", "user_data_dir")


def jobs_folder() -> Path:
    """The folder of jobs, which may not exist yet. Raises InputError if the variable names a file."""
    return _folder("jobs", "user_data_dir")


def _folder(kind: str, platform_folder: str) -> Path:
    if (base := _from_environment(CACHE_VARIABLE)) is not None:
        return base / kind
    import platformdirs  # slow to import, and only needed without the variable

    return Path(getattr(platformdirs, platform_folder)("voxcpm-coreml")) / kind


def user_path(path: str | os.PathLike[str]) -> Path:
    """The path with `~` expanded. Raises InputError for an invalid path."""
    try:
        # Checked here, since Python's functions raise different errors.
        if b"\0" in os.fsencode(path):
            raise InputError(f"{path!r}: a path cannot contain a null character")
        return Path(path).expanduser()
    except UnicodeEncodeError:
        raise InputError(f"{path!r}: the file system cannot encode these characters") from None
    except RuntimeError:
        raise InputError(f"{path}: ~ cannot be expanded, as there is no such user") from None


def is_hub_id(name: str) -> bool:
    """Whether a name has the form `organisation/name`. Callers check first that no such path exists."""
    return _HUB_ID.fullmatch(name) is not None


def _from_environment(variable: str) -> Path | None:
    """The folder that an environment variable names."""
    if not (value := os.environ.get(variable, "").strip()):
        return None
    try:
        folder = user_path(value)
    except InputError as error:
        raise InputError(f"{variable}={error}") from None
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{variable}={value}: expected a folder, but it is a file; name another or unset it")
    return folder.absolute()
