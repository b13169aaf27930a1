"""Text → token ids, equal to those of upstream's tokeniser, without `transformers`.

Upstream (`model/utils.py`) splits every token of several Chinese characters into single characters. How the files
become a tokeniser is `tokenizer_file`'s.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

from tokenizers import Encoding, Tokenizer

from voxcpm_constants.errors import BundleError
from voxcpm_constants.tokenizer_file import WORD_START, PanickedError, open_tokenizer, panics_told

_CHINESE = re.compile("[\u4e00-\u9fff]+")


class TextTokenizer:
    """A function from a text to its token ids; open one with `from_folder`."""

    def __init__(self, tokenizer: Tokenizer, unknown: str) -> None:
        self._tokenizer = tokenizer
        self._unknown = unknown
        self._unknown_id: int | None = tokenizer.token_to_id(unknown)

    @classmethod
    def from_folder(cls, folder: Path) -> TextTokenizer:
        """Read `tokenizer.json` and `tokenizer_config.json`. Raises BundleError when one is absent or not BPE."""
        try:
            return cls(*open_tokenizer(folder))
        except ValueError as error:
            raise BundleError(str(error)) from None

    def tokens(self, text: str) -> list[str]:
        """BPE tokens of a text; those of several Chinese characters are split (upstream's `tokenize`).

        Raises BundleError if a regular expression of the tokeniser fails on the text.
        """
        tokens: list[str] = []
        for piece in self._encoding(text).tokens:
            bare = piece.replace(WORD_START, "")
            if len(bare) > 1 and _CHINESE.fullmatch(bare) and self._tokenizer.token_to_id(bare) is not None:
                tokens += bare
            else:
                tokens.append(piece)
        return tokens

    def __call__(self, text: str) -> list[int]:
        """Token ids of a text; a token that is not in the vocabulary gets the id of the unknown token."""
        ids: list[int] = []
        for token in self.tokens(text):
            id_ = self._tokenizer.token_to_id(token)
            id_ = self._unknown_id if id_ is None else id_
            if id_ is not None:
                ids.append(id_)
        return ids

    @functools.cached_property
    def has_letters_only(self) -> bool:
        """Whether the vocabulary is letters and a few marks, without digits."""
        return bool(self.unknown_characters("0123456789"))

    def unknown_characters(self, text: str) -> str:
        """Characters of a text, each once, that no token represents, so that they would not be spoken."""
        encoding = self._encoding(text)
        known: set[int] = set()
        for token, (start, end) in zip(encoding.tokens, encoding.offsets, strict=True):
            # A prepended word start has the offsets of the first character.
            if token != self._unknown and (token != WORD_START or text[start:end].isspace()):
                known.update(range(start, end))
        lost: dict[str, None] = {}
        for index, char in enumerate(text):
            if index not in known and not char.isspace():
                lost[char] = None
        return "".join(lost)

    def _encoding(self, text: str) -> Encoding:
        try:
            with panics_told("the tokeniser fails on the text"):
                return self._tokenizer.encode(text, add_special_tokens=False)
        except PanickedError as error:
            raise BundleError(str(error)) from None
