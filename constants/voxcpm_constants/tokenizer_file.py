"""`tokenizer.json`: what a conversion and a bundle both expect of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from voxcpm_constants.json_files import read_json


def read_tokenizer(path: Path) -> dict[str, Any]:
    """The document of a BPE tokeniser's file. Raises OSError, and ValueError, one line, for any other file."""
    document = read_json(path)
    if not isinstance(document, dict):
        raise ValueError("expected a JSON object")  # noqa: TRY004 - of the file, not of the argument
    model = document.get("model")
    if not isinstance(model, dict) or model.get("type", "BPE") != "BPE":
        raise ValueError("expected a BPE tokeniser, as every VoxCPM has")
    return document
