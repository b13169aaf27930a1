"""Text without paths, and without the names of the user and the host: a report may be attached to a public issue."""

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

# An absolute path, or one in a home folder: of it only the last part is kept, which names a file of the bundle. A path
# may stand in a file: URL. Spaces are part of it only where they are escaped.
_PATH = re.compile(r"(?:file:/*)?(?<![\w.…])~?/(?:[^\s/'\"()<>,;:]+/)+([^\s/'\"()<>,;:]*)")


# Where words come that are not this project's own: Core ML's, and what a child process said last. All other texts are
# of its vocabulary, in which a user's or a host's name may stand by chance.
_FREE = {"message", "advice", "refusal", "no_plan"}


def anonymous(document: Any, folders: Iterable[Path]) -> Any:
    """A JSON value whose free texts have "…" for paths and names. folders: paths that may have spaces."""
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
        # There may be no home folder, and no folder to write into.
        with contextlib.suppress(KeyError, OSError, RuntimeError, InputError):
            yield Path(folder())


def _user() -> str:
    """The user's name; empty for a user whom the system does not know."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, RuntimeError):
        return ""


def _words(names: Iterable[str]) -> re.Pattern[str] | None:
    """A pattern of whole words. Shorter names than three letters would be found everywhere."""
    found = sorted((re.escape(name) for name in names if len(name) > 2), key=len, reverse=True)
    return re.compile(rf"(?<!\w)(?:{'|'.join(found)})(?!\w)") if found else None
