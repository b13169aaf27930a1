"""JSON from outside, with a bound on its size and its depth; all of it is read here."""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path
from typing import Any

from voxcpm_constants.bounds import MAX_JSON_BYTES, MAX_JSON_DEPTH


def read_json(path: Path, max_bytes: int = MAX_JSON_BYTES) -> Any:
    """The document of a UTF-8 file. Raises OSError, and ValueError for what is not JSON or too large."""
    return parsed_json(json_content(path, max_bytes))


def json_content(path: Path, max_bytes: int = MAX_JSON_BYTES) -> bytes:
    """The content of a file for `parsed_json`. Raises OSError, and ValueError for one that is too large."""
    # Opening a pipe would wait for its other end.
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError("it is no regular file")
    with path.open("rb") as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ValueError(f"it has more than {max_bytes / 1e6:g} MB")
    return content


def parsed_json(content: str | bytes) -> Any:
    """The document of a text. Raises ValueError, one line, for what is not JSON in UTF-8, is nested too deeply, has a
    key of an object twice, or a string that is not valid Unicode.
    """
    try:
        text = content if isinstance(content, str) else content.decode()
        document = json.loads(text, object_pairs_hook=_each_key_once)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    _check_depth(document)
    if _SURROGATE.search(text):
        _check_unicode(document)
    return document


_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def _check_unicode(document: object) -> None:
    """Half of a pair of surrogates can be escaped in JSON, but not be written anywhere else."""
    try:
        json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("a string in it is not valid Unicode: half of a pair of surrogates") from None


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object. Raises ValueError for a key that it has twice: readers differ in which of its values counts."""
    document = dict(pairs)
    if len(document) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"it has the key {next(key for key in keys if keys.count(key) > 1)!r} twice")
    return document


_TOO_DEEP = f"objects and lists are nested more than {MAX_JSON_DEPTH} deep"


def _check_depth(document: object) -> None:
    # Level by level: whatever reads the document afterwards may call itself for each.
    level = [document]
    for _ in range(MAX_JSON_DEPTH + 1):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return
    raise ValueError(_TOO_DEEP)
