"""Reads untrusted files with a size limit, as bytes or as JSON, and writes results as JSON.

pydantic-core's parser rejects more than 200 levels of nesting and invalid Unicode, such as a lone surrogate.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import BaseModel
from pydantic_core import from_json

from voxcpm_constants.bounds import MAX_JSON_BYTES
from voxcpm_constants.errors import CheckpointError


class Record(BaseModel, extra="forbid", frozen=True):
    """A part of a JSON document: immutable, without other fields."""


def read_json(path: Path) -> Any:
    """The document of a UTF-8 file. Raises OSError, and a one-line ValueError if it is not JSON or too large."""
    return parsed_json(json_content(path))


def checkpoint_json(path: Path, what: str = "JSON") -> Any:
    """The document of a file that a conversion reads. Raises CheckpointError if it cannot be read as `what`."""
    try:
        return read_json(path)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: expected {what}, but it cannot be read ({error})") from None


def json_content(path: Path) -> bytes:
    """The content of a file for `parsed_json`. Raises OSError, and ValueError if it is too large."""
    # Opening a pipe would block.
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError("it is not a regular file")
    with path.open("rb") as file:
        content = file.read(MAX_JSON_BYTES + 1)
    if len(content) > MAX_JSON_BYTES:
        raise ValueError(f"it is larger than {MAX_JSON_BYTES / 1e6:g} MB")
    return content


def parsed_json(content: str | bytes) -> Any:
    """The document of a UTF-8 text. Raises a one-line ValueError if it is not JSON or nested too deeply."""
    return from_json(content)


def printed_json(result: Any) -> str:
    """A command's result as `--json` prints it."""
    return json.dumps(result, indent=1, ensure_ascii=False)


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """The content of a file or a pipe. Raises OSError for more than `max_bytes`, and for a device."""
    with path.open("rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
            raise OSError(errno.EINVAL, "it is neither a file nor a pipe")
        return read_at_most(file, max_bytes)


def read_at_most(file: BinaryIO, max_bytes: int) -> bytes:
    """The rest of an open file. Raises OSError for more than `max_bytes`."""
    content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {max_bytes} bytes")
    return content
