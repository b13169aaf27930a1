"""The character tokenizer. Its text is lower-case English letters, space, and ' - , . ? !"""

from __future__ import annotations

import json
import re
from importlib import resources
from typing import Any

import numpy as np
import numpy.typing as npt

AUDIO_START = 101
"""Upstream's id of the token between text and audio."""
SPACE = "▁"

_SPEAKABLE = re.compile(r"[a-z'][a-z' ,.?!-]*[.?!]")


def is_speakable(text: str) -> bool:
    """Whether `text` is lower-case words and marks, and ends with one of . ? !"""
    return _SPEAKABLE.fullmatch(text) is not None


def tokenizer_document() -> dict[str, Any]:
    """The contents of tokenizer.json: one token per character, with upstream's ids for its audio tokens."""
    return json.loads(resources.files(__package__).joinpath("tokenizer.json").read_text(encoding="utf-8"))


def character_ids() -> dict[str, int]:
    """Token id of each character."""
    vocabulary: dict[str, int] = tokenizer_document()["model"]["vocab"]
    return {token: index for token, index in vocabulary.items() if len(token) == 1}


def encode(text: str, ids: dict[str, int]) -> npt.NDArray[np.uint8]:
    """Token ids (characters + 1,): a word mark, then one token per character, as tokenizer.json encodes text."""
    return np.array([ids[c] for c in SPACE + text.replace(" ", SPACE)], dtype=np.uint8)


def words(text: str) -> tuple[str, ...]:
    """The words of a text, without punctuation."""
    return tuple(re.findall(r"[a-z']+", text))
