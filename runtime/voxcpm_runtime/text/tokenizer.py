"""Text → token ids, equal to those of upstream's tokeniser, without `transformers`.

Upstream (`model/utils.py`) wraps `LlamaTokenizerFast`: no BOS, and every token of several Chinese characters is
split into single characters. What LlamaTokenizerFast does depends on the release of transformers: 4 runs
`tokenizer.json` as it is, 5 takes only its vocabulary and merges and builds Llama's own pipeline around them.

- Published checkpoints have Llama's normaliser. For them both agree except for leading spaces; this follows 5.
- If a file has another normaliser (lower-casing, for example), 5 drops it, and then loses every letter without a
  token. For such a file this follows 4: the file as it is, which is what such a checkpoint was trained with.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Encoding, Tokenizer

from voxcpm_constants.errors import BundleError, first_line
from voxcpm_constants.json_files import read_json
from voxcpm_constants.tokenizer_file import read_tokenizer

_WORD_START = "▁"
_LLAMA_NORMALIZER = {
    "type": "Sequence",
    "normalizers": [
        {"type": "Prepend", "prepend": _WORD_START},
        {"type": "Replace", "pattern": {"String": " "}, "content": _WORD_START},
    ],
}
_NAMED_SPECIAL_TOKENS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
_DEFAULT_NAMED = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
_ADDED_TOKEN_FIELDS = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")


class TextTokenizer:
    """A function from a text to its token ids; open one with `from_folder`."""

    def __init__(self, tokenizer: Tokenizer, unknown: str) -> None:
        self._tokenizer = tokenizer
        self._unknown = unknown
        self._unknown_id: int | None = tokenizer.token_to_id(unknown)

    @classmethod
    def from_folder(cls, folder: Path) -> TextTokenizer:
        """Read `tokenizer.json` and `tokenizer_config.json`. Raises BundleError when one is absent or not BPE."""
        config = _read(folder / "tokenizer_config.json", read_json)
        document = _read(folder / "tokenizer.json", read_tokenizer)
        build = _llama_tokenizer if document.get("normalizer") == _LLAMA_NORMALIZER else _tokenizer_of_file
        try:
            with _panics_told("not a tokeniser file"):
                return cls(build(document, config), _content(config.get("unk_token") or "<unk>"))
        except BundleError as error:
            raise BundleError(f"{folder / 'tokenizer.json'}: {error}") from None
        except Exception as error:  # noqa: BLE001 - tokenizers raises bare Exception for a bad file
            raise BundleError(f"{folder / 'tokenizer.json'}: not a tokeniser file ({error})") from None

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
            if token != self._unknown and (token != _WORD_START or text[start:end].isspace())
            for index in range(start, end)
        }
        lost = (char for index, char in enumerate(text) if index not in known and not char.isspace())
        return "".join(dict.fromkeys(lost))

    def _encoding(self, text: str) -> Encoding:
        with _panics_told("the tokeniser fails on the text"):
            return self._tokenizer.encode(text, add_special_tokens=False)

    def _split(self, piece: str) -> Iterable[str]:
        bare = piece.replace(_WORD_START, "")
        splits = len(bare) > 1 and all("\u4e00" <= char <= "\u9fff" for char in bare)
        return bare if splits and self._tokenizer.token_to_id(bare) is not None else (piece,)


def _tokenizer_of_file(document: Mapping[str, Any], config: Mapping[str, Any]) -> Tokenizer:  # noqa: ARG001
    unused = dict.fromkeys(("truncation", "padding", "post_processor", "decoder"))
    return Tokenizer.from_str(json.dumps({**document, **unused}))


def _llama_tokenizer(document: Mapping[str, Any], config: Mapping[str, Any]) -> Tokenizer:
    """The file's vocabulary in Llama's pipeline (transformers 5, `models/llama/tokenization_llama.py`)."""
    prefix = config.get("add_prefix_space")
    always = "always" if config.get("legacy", False) else "first"
    pre_tokenizer = {
        "type": "Metaspace",
        "replacement": _WORD_START,
        "prepend_scheme": always if prefix is None or prefix else "never",
        "split": False,
    }
    model = {
        "type": "BPE",
        "vocab": document["model"]["vocab"],
        "merges": document["model"].get("merges", []),
        "fuse_unk": True,
        "byte_fallback": True,
    }
    tokenizer = Tokenizer.from_str(
        json.dumps(
            {
                "version": "1.0",
                "truncation": None,
                "padding": None,
                "added_tokens": [],
                "normalizer": None,
                "pre_tokenizer": pre_tokenizer,
                "post_processor": None,
                "decoder": None,
                "model": model,
            }
        )
    )
    tokenizer.add_tokens(_added_tokens(document, config))
    tokenizer.encode_special_tokens = bool(config.get("split_special_tokens", False))
    return tokenizer


def _added_tokens(document: Mapping[str, Any], config: Mapping[str, Any]) -> list[AddedToken]:
    """Tokens cut out before BPE, by id: the configuration's list, or the file's if it has none, then named ones."""
    listed = config.get("added_tokens_decoder")
    if listed is None:
        records = sorted(document.get("added_tokens") or (), key=lambda record: record["id"])
    else:
        records = [record for _, record in sorted(listed.items(), key=lambda item: int(item[0]))]
    added = [
        AddedToken(**{field: record[field] for field in _ADDED_TOKEN_FIELDS if field in record})
        for record in records
    ]
    known = {record["content"] for record in records}
    for name in _named_tokens(config):
        if name not in known:
            known.add(name)
            added.append(AddedToken(name, special=True))
    return added


def _named_tokens(config: Mapping[str, Any]) -> list[str]:
    named = [config.get(key, _DEFAULT_NAMED.get(key)) for key in _NAMED_SPECIAL_TOKENS]
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    values = [*named, *(extra.values() if isinstance(extra, dict) else extra)]
    return [_content(value) for value in values if value is not None]


def _content(token: str | Mapping[str, Any]) -> str:
    return token if isinstance(token, str) else str(token["content"])


@contextmanager
def _panics_told(what: str) -> Iterator[None]:
    """A context in which a panic of the library's Rust code becomes a BundleError: it is no Exception."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise BundleError(
            f"{what} ({first_line(error)}); convert again with another tokenizer.json"
        ) from None


def _read(path: Path, read: Callable[[Path], Any]) -> dict[str, Any]:
    try:
        document = read(path)
    except (OSError, ValueError) as error:
        raise BundleError(f"{path}: expected a tokeniser file, but it cannot be read ({error})") from None
    if not isinstance(document, dict):
        raise BundleError(f"{path}: expected a JSON object")
    return document
