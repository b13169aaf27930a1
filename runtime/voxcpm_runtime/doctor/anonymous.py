"""Text without paths, and without the names of the user and the host: a report may be attached to a public issue."""

from __future__ import annotations

import getpass
import platform
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

# An absolute path, or one in a home folder: of it only the last part is kept, which names a file of the bundle. A path
# may stand in a file: URL. Spaces are part of it only where they are escaped.
_PATH = re.compile(r"(?:file:/*)?(?<![\w.…])~?/(?:[^\s/'\"()<>,;:]+/)+([^\s/'\"()<>,;:]*)")


def anonymous(value: Any, folders: Iterable[Path]) -> Any:
    """A JSON value whose texts have "…" for paths and names. folders: paths that may have spaces."""
    private = [folder for path in (*folders, Path.home()) for folder in {str(path), str(path.resolve())}]
    names = {getpass.getuser(), platform.node(), platform.node().partition(".")[0]}
    return _cleaned(value, sorted(private, key=len, reverse=True), _words(names))


def _cleaned(value: Any, folders: list[str], names: re.Pattern[str] | None) -> Any:
    if isinstance(value, dict):
        return {key: _cleaned(item, folders, names) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_cleaned(item, folders, names) for item in value]
    if not isinstance(value, str):
        return value
    for folder in folders:
        value = value.replace(folder, "…") if len(folder) > 1 else value
    value = _PATH.sub(r"…/\1", value)
    return value if names is None else names.sub("…", value)


def _words(names: Iterable[str]) -> re.Pattern[str] | None:
    """A pattern of whole words. Shorter names than three letters would be found everywhere."""
    found = sorted((re.escape(name) for name in names if len(name) > 2), key=len, reverse=True)
    return re.compile(rf"(?<!\w)(?:{'|'.join(found)})(?!\w)") if found else None
