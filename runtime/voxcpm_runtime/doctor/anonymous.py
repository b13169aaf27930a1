"""Text without paths and without the names of user and host, as a report may be attached to a public issue."""

from __future__ import annotations

import contextlib
import getpass
import platform
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from voxcpm_constants.errors import InputError
from voxcpm_constants.user_folders import cache_folder

# An absolute path, one in a home folder, or a file: URL. Only its last part is kept, which names a file of the bundle.
# Spaces belong to it only if they are escaped.
_PATH = re.compile(r"(?:file:/*)?(?<![\w.…])~?/(?:[^\s/'\"()<>,;:]+/)+([^\s/'\"()<>,;:]*)")

# Keys with text of Core ML or a child process. All other texts are this project's own words, which may equal the name
# of a user or a host by chance.
_FREE = {"message", "advice", "refusal", "no_plan"}


def anonymous(document: Any, folders: Iterable[Path]) -> Any:
    """A JSON value with "…" for paths and names in its free texts. folders: paths that may contain spaces."""
    known = {folder for path in (*folders, *_folders()) for folder in {str(path), str(path.resolve())}}
    private = sorted((re.escape(folder) for folder in known if len(folder) > 1), key=len, reverse=True)
    node = platform.node()
    paths = re.compile(rf"(?:{'|'.join(private)})(?![\w.-])") if private else None
    names = _words({_user(), node, node.partition(".")[0]})

    def cleaned(text: str) -> str:
        text = _PATH.sub(r"…/\1", paths.sub("…", text) if paths else text)
        return names.sub("…", text) if names else text

    return _with_free_texts(document, cleaned, free=False)


def _with_free_texts(value: Any, cleaned: Callable[[str], str], *, free: bool) -> Any:
    if isinstance(value, dict):
        return {
            key: _with_free_texts(item, cleaned, free=free or key in _FREE) for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_with_free_texts(item, cleaned, free=free) for item in value]
    return cleaned(value) if free and isinstance(value, str) else value


def _folders() -> Iterator[Path]:
    """Folders of this user and this installation that Core ML or a library may name."""
    for folder in (
        Path.home,
        lambda: cache_folder("compiled").parent,
        tempfile.gettempdir,
        lambda: sys.prefix,
    ):
        # There may be no home folder and no temp folder.
        with contextlib.suppress(KeyError, OSError, RuntimeError, InputError):
            yield Path(folder())


def _user() -> str:
    """The user's name; empty if the system has none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, RuntimeError):
        return ""


def _words(names: Iterable[str]) -> re.Pattern[str] | None:
    """A pattern of whole words. Names of one or two letters would match everywhere."""
    found = sorted((re.escape(name) for name in names if len(name) > 2), key=len, reverse=True)
    return re.compile(rf"(?<!\w)(?:{'|'.join(found)})(?!\w)") if found else None
