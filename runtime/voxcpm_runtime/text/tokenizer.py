"""Text → token ids, equal to those of upstream's tokeniser, without `transformers`.

Upstream (`model/utils.py`) splits every token of several Chinese characters into single characters. How the files
become a tokeniser is `tokenizer_file`'s.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tokenizers import Encoding, Tokenizer

from voxcpm_constants.errors import BundleError
from voxcpm_constants.tokenizer_file import WORD_START, PanickedError, open_tokenizer, panics_told


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
        pieces = self._encoding(text).tokens
        return [token for piece in pieces for token in self._split(piece)]

    def __call__(self, text: str) -> list[int]:
        """Token ids of a text; a token that is not in the vocabulary gets the id of the unknown token."""
        ids = (self._tokenizer.token_to_id(token) for token in self.tokens(text))
        return [id_ for id_ in (self._unknown_id if id_ is None else id_ for id_ in ids) if id_ is not None]

    def unknown_characters(self, text: str) -> str:
        """Characters of a text, each once, that no token represents, so that they would not be spoken."""
        encoding = self._encoding(text)
        known = {
            index
            for token, (start, end) in zip(encoding.tokens, encoding.offsets, strict=True)
            # A prepended word start has the offsets of the first character.
            if token != self._unknown and (token != WORD_START or text[start:end].isspace())
            for index in range(start, end)
        }
        lost = (char for index, char in enumerate(text) if index not in known and not char.isspace())
        return "".join(dict.fromkeys(lost))

    def _encoding(self, text: str) -> Encoding:
        try:
            with panics_told("the tokeniser fails on the text"):
                return self._tokenizer.encode(text, add_special_tokens=False)
        except PanickedError as error:
            raise BundleError(str(error)) from None

    def _split(self, piece: str) -> Iterable[str]:
        bare = piece.replace(WORD_START, "")
        splits = len(bare) > 1 and all("\u4e00" <= char <= "\u9fff" for char in bare)
        return bare if splits and self._tokenizer.token_to_id(bare) is not None else (piece,)
