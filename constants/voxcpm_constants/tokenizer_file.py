"""`tokenizer.json`: what a conversion and a bundle both expect of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from voxcpm_constants.json_files import read_json

_WORKING_ON_TEXT = ("normalizer", "pre_tokenizer")
"""Parts of the file that rewrite or split a text, and may do so by regular expressions."""


def read_tokenizer(path: Path) -> dict[str, Any]:
    """The document of a BPE tokeniser's file. Raises OSError, and ValueError, one line, for any other file."""
    document = read_json(path)
    if not isinstance(document, dict):
        raise ValueError("expected a JSON object")  # noqa: TRY004 - of the file, not of the argument
    model = document.get("model")
    if not isinstance(model, dict) or model.get("type", "BPE") != "BPE":
        raise ValueError("expected a BPE tokeniser, as every VoxCPM has")
    if any(_has_pattern(document.get(part)) for part in _WORKING_ON_TEXT):
        raise ValueError(
            "it has a regular expression of its own, as no VoxCPM has; such an expression can take any time for a "
            "text, so it is not run: leave it out"
        )
    return document


def _has_pattern(value: object) -> bool:
    """Whether a part of the pipeline has a regular expression, at any depth."""
    inner = [value]
    while inner:
        outer = inner.pop()
        if isinstance(outer, dict):
            if "Regex" in outer:
                return True
            inner.extend(outer.values())
        elif isinstance(outer, list):
            inner.extend(outer)
    return False
