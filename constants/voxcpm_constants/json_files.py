"""JSON from outside, with a bound on its size; all of it is read here.

pydantic-core's parser rejects more than 200 levels of nesting and invalid Unicode, such as half of a surrogate pair.
"""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from voxcpm_constants.bounds import MAX_JSON_BYTES


def read_json(path: Path, max_bytes: int = MAX_JSON_BYTES) -> Any:
    """The document of a UTF-8 file. Raises OSError, and ValueError, one line, if it is not JSON or too large."""
    return parsed_json(json_content(path, max_bytes))


def json_content(path: Path, max_bytes: int = MAX_JSON_BYTES) -> bytes:
    """The content of a file for `parsed_json`. Raises OSError, and ValueError if it is too large."""
    # Opening a pipe would wait for its other end.
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError("it is not a regular file")
    with path.open("rb") as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ValueError(f"it has more than {max_bytes / 1e6:g} MB")
    return content


def parsed_json(content: str | bytes) -> Any:
    """The document of a UTF-8 text. Raises ValueError, one line, if it is not JSON or nested too deeply."""
    return from_json(content)
