"""The tokenizer's files, opened in the same way by conversion and runtime, so that what converts also opens.

Upstream (`model/utils.py`) wraps `LlamaTokenizerFast`, without BOS. Its behaviour depends on the release of
transformers: 4 runs `tokenizer.json` unchanged, 5 takes its vocabulary and merges and builds Llama's pipeline around
them.

- Published checkpoints have Llama's normaliser. For them both agree except for leading spaces; this follows 5.
- Another normaliser (lower-casing, for example) is dropped by 5, which then loses every letter without a token. For
  such a file this follows 4: it is run unchanged, as the checkpoint was trained with it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from tokenizers import AddedToken, Tokenizer

from voxcpm_constants.errors import first_line, first_wrong_field
from voxcpm_constants.json_files import read_json
from voxcpm_constants.tokenizer_steps import check_steps

TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
WORD_START = "▁"

_LLAMA_NORMALIZER = {
    "type": "Sequence",
    "normalizers": [
        {"type": "Prepend", "prepend": WORD_START},
        {"type": "Replace", "pattern": {"String": " "}, "content": WORD_START},
    ],
}
_UNKNOWN = "<unk>"

_T = TypeVar("_T")


class _AddedToken(BaseModel):
    """A token that is cut out of a text before BPE, with the library's defaults."""

    model_config = ConfigDict(strict=True)

    content: str
    # The library panics if two tokens that absorb adjacent text overlap.
    single_word: Literal[False] = False
    lstrip: Literal[False] = False
    rstrip: Literal[False] = False
    normalized: bool = True
    special: bool = False


class _NamedToken(BaseModel):
    model_config = ConfigDict(strict=True)

    content: str


_Named = str | _NamedToken


class _Config(BaseModel):
    """The keys of `tokenizer_config.json` that are used, with the defaults of transformers."""

    model_config = ConfigDict(strict=True)

    bos_token: _Named | None = "<s>"  # noqa: S105 - no password
    eos_token: _Named | None = "</s>"  # noqa: S105 - likewise
    unk_token: _Named | None = _UNKNOWN
    sep_token: _Named | None = None
    pad_token: _Named | None = None
    cls_token: _Named | None = None
    mask_token: _Named | None = None
    extra_special_tokens: list[_Named] | dict[str, _Named] | None = None
    additional_special_tokens: list[_Named] | None = None
    added_tokens_decoder: dict[str, _AddedToken] | None = None
    add_prefix_space: bool | None = None
    legacy: bool | None = None
    split_special_tokens: bool | None = None

    def unknown(self) -> str:
        """The token of unknown characters."""
        return _content(self.unk_token or _UNKNOWN)

    def named(self) -> list[str]:
        """The special tokens that have names, in the order in which transformers adds them."""
        own = [
            self.bos_token,
            self.eos_token,
            self.unk_token,
            self.sep_token,
            self.pad_token,
            self.cls_token,
            self.mask_token,
        ]
        extra = self.extra_special_tokens or self.additional_special_tokens or []
        values = [*own, *(extra.values() if isinstance(extra, dict) else extra)]
        return [_content(value) for value in values if value is not None]


def open_tokenizer(folder: Path, *, needs_config: bool = True) -> tuple[Tokenizer, str]:
    """The tokeniser of a folder, and its unknown token.

    needs_config: whether `tokenizer_config.json` must exist, as in a bundle; a checkpoint may lack it. Raises
    ValueError, one line with the path, for a file that is missing, damaged, or not of a BPE tokeniser.
    """
    config_path, path = folder / TOKENIZER_CONFIG_FILE, folder / TOKENIZER_FILE
    settings: Any = {}
    if needs_config or config_path.exists():
        settings = _read(config_path, read_json)
    document = _read(path, read_tokenizer)
    if not isinstance(settings, dict):
        raise ValueError(f"{config_path}: expected a JSON object")  # noqa: TRY004 - of the file, not of the argument
    try:
        config = _Config.model_validate(settings)
        if config.added_tokens_decoder is not None:
            _by_id(config.added_tokens_decoder)
    except ValidationError as error:
        raise ValueError(f"{config_path}: not a tokeniser file ({first_wrong_field(error)})") from None
    except ValueError as error:
        raise ValueError(
            f"{config_path}: not a tokeniser file (added_tokens_decoder: {first_line(error)})"
        ) from None
    try:
        with panics_told("not a tokeniser file"):
            if document.get("normalizer") == _LLAMA_NORMALIZER:
                return _llama_tokenizer(document, config), config.unknown()
            return _tokenizer_of_file(document), config.unknown()
    except PanickedError as error:
        raise ValueError(f"{path}: {error}") from None
    except Exception as error:  # noqa: BLE001 - tokenizers raises bare Exception for a bad file
        raise ValueError(f"{path}: not a tokeniser file ({first_line(error)})") from None


class PanickedError(Exception):
    """An error of the library's Rust code: a panic, which is not an Exception, or an error without its own class."""


@contextmanager
def panics_told(what: str) -> Iterator[None]:
    """Turn an error of the library's Rust code into a one-line PanickedError."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException" and type(error) is not Exception:
            raise
        raise PanickedError(
            f"{what} ({first_line(error)}); convert again with another tokenizer.json"
        ) from None


def read_tokenizer(path: Path) -> dict[str, Any]:
    """The document of a BPE tokeniser's file. Raises OSError, and ValueError, one line, for any other file."""
    document = read_json(path)
    if not isinstance(document, dict):
        raise ValueError("expected a JSON object")  # noqa: TRY004 - of the file, not of the argument
    model = document.get("model")
    if not isinstance(model, dict) or model.get("type", "BPE") != "BPE":
        raise ValueError("expected a BPE tokeniser, as every VoxCPM has")
    if model.get("dropout"):
        raise ValueError("expected a BPE without dropout, which draws the tokens of a text by chance")
    check_steps(document)
    return document


def _tokenizer_of_file(document: dict[str, Any]) -> Tokenizer:
    unused = dict.fromkeys(("truncation", "padding", "post_processor", "decoder"))
    _listed_tokens(document)
    return Tokenizer.from_str(json.dumps({**document, **unused}))


def _llama_tokenizer(document: dict[str, Any], config: _Config) -> Tokenizer:
    """The file's vocabulary in Llama's pipeline (transformers 5, `models/llama/tokenization_llama.py`)."""
    always = "always" if config.legacy else "first"
    pre_tokenizer = {
        "type": "Metaspace",
        "replacement": WORD_START,
        "prepend_scheme": "never" if config.add_prefix_space is False else always,
        "split": False,
    }
    model = {
        "type": "BPE",
        "vocab": document["model"]["vocab"],
        "merges": document["model"].get("merges", []),
        "fuse_unk": True,
        "byte_fallback": True,
    }
    unused = dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder"))
    pipeline = {"version": "1.0", "added_tokens": [], "pre_tokenizer": pre_tokenizer, "model": model}
    tokenizer = Tokenizer.from_str(json.dumps({**unused, **pipeline}))
    tokenizer.add_tokens(_added_tokens(document, config))
    tokenizer.encode_special_tokens = bool(config.split_special_tokens)
    return tokenizer


def _added_tokens(document: dict[str, Any], config: _Config) -> list[AddedToken]:
    """Tokens cut out before BPE, by id: those of the configuration, or else of the file, then the named ones."""
    listed = config.added_tokens_decoder
    records = _listed_tokens(document) if listed is None else _by_id(listed)
    added = [AddedToken(**record.model_dump(exclude_unset=True)) for record in records]
    known = {record.content for record in records}
    for name in config.named():
        if name not in known:
            known.add(name)
            added.append(AddedToken(name, special=True))
    return added


def _listed_tokens(document: dict[str, Any]) -> list[_AddedToken]:
    listed = sorted(document.get("added_tokens") or (), key=lambda record: record["id"])
    try:
        return [_AddedToken.model_validate(record) for record in listed]
    except ValidationError as error:
        raise ValueError(f"added_tokens: {first_wrong_field(error)}") from None


def _by_id(listed: dict[str, _AddedToken]) -> list[_AddedToken]:
    return [record for _, record in sorted(listed.items(), key=lambda item: int(item[0]))]


def _content(token: _Named) -> str:
    return token if isinstance(token, str) else token.content


def _read(path: Path, read: Callable[[Path], _T]) -> _T:
    try:
        return read(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: expected a tokeniser file, but it cannot be read ({error})") from None
