"""Text → token ids, equal to those of upstream's tokenizer, without `transformers`."""

from __future__ import annotations

import functools
import re
from operator import itemgetter
from pathlib import Path

from tokenizers import Encoding, Tokenizer

from voxcpm_constants.errors import BundleError, first_line
from voxcpm_constants.tokenizer_file import WORD_START, is_panic, open_tokenizer

CHINESE = re.compile("[\u4e00-\u9fff]")


class TextTokenizer:
    """A callable from text to token ids; open one with `from_folder`."""

    def __init__(self, tokenizer: Tokenizer, unknown: str) -> None:
        self._tokenizer = tokenizer
        self._unknown = unknown
        self._unknown_id: int | None = tokenizer.token_to_id(unknown)

    @classmethod
    def from_folder(cls, folder: Path) -> TextTokenizer:
        """Read `tokenizer.json` and `tokenizer_config.json`. Raises BundleError if one is missing or not BPE."""
        try:
            return cls(*open_tokenizer(folder))
        except ValueError as error:
            raise BundleError(str(error)) from None

    def __call__(self, text: str) -> list[int]:
        """Token ids of a text. Tokens of several Chinese characters are split (upstream's `model/utils.py`).

        Raises BundleError if a regular expression of the tokenizer fails on the text.
        """
        return [*map(itemgetter(0), self.placed(text))]

    def placed(self, text: str) -> list[tuple[int, int]]:
        """The token ids of a text, each with the place in the text where it begins, after a space."""
        encoding = self._encoding(text)
        found: list[tuple[int, int]] = []
        for token, token_id, (start, end) in zip(
            encoding.tokens, encoding.ids, encoding.offsets, strict=True
        ):
            bare = token.replace(WORD_START, "")
            is_chinese = len(bare) > 1 and all(map(CHINESE.match, bare))
            if not is_chinese or self._tokenizer.token_to_id(bare) is None:
                found.append((token_id, start + (end - start > 1 and text[start].isspace())))
                continue
            for place, char in enumerate(bare, start=end - len(bare)):
                char_id = self._tokenizer.token_to_id(char)
                char_id = self._unknown_id if char_id is None else char_id
                if char_id is not None:
                    found.append((char_id, place))
        return found

    @functools.cached_property
    def has_letters_only(self) -> bool:
        """Whether the vocabulary lacks digits, as one of letters and a few punctuation marks does."""
        return bool(self.unknown_characters("0123456789"))

    def unknown_characters(self, text: str) -> str:
        """The characters of a text, each once, that have no token, so that they would not be spoken."""
        encoding = self._encoding(text)
        known: set[int] = set()
        for token, (start, end) in zip(encoding.tokens, encoding.offsets, strict=True):
            # A prepended word start has the offsets of the first character.
            if token != self._unknown and (token != WORD_START or text[start:end].isspace()):
                known.update(range(start, end))
        lost = (char for at, char in enumerate(text) if at not in known and not char.isspace())
        return "".join(dict.fromkeys(lost))

    def _encoding(self, text: str) -> Encoding:
        try:
            return self._tokenizer.encode(text, add_special_tokens=False)
        except BaseException as error:
            if not is_panic(error):
                raise
            raise BundleError(
                f"the tokenizer fails on the text ({first_line(error)}); convert again with another tokenizer.json"
            ) from None
