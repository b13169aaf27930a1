"""Opens the tokenizer of a checkpoint or bundle, so that whatever converts also opens.

Upstream (`model/utils.py`) wraps `LlamaTokenizerFast`, without BOS. Its behaviour depends on the release of
transformers: 4 runs `tokenizer.json` unchanged, 5 takes its vocabulary and merges and builds Llama's pipeline around
them.

- Published checkpoints have Llama's normaliser. For them both agree except for leading spaces; this follows 5.
- Another normaliser (lower-casing, for example) is dropped by 5, which then loses every letter without a token. For
  such a file this follows 4: it is run unchanged, as the checkpoint was trained with it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, Field, ValidationError
from tokenizers import AddedToken, Tokenizer

from voxcpm_constants.errors import first_line, first_wrong_field
from voxcpm_constants.json_files import read_json

TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
WORD_START = "▁"

# Tokens that delimit audio in VoxCPM's sequence (upstream `model/voxcpm.py`, `model/voxcpm2.py`).
AUDIO_START, AUDIO_END = 101, 102
REFERENCE_START, REFERENCE_END = 103, 104

_LLAMA_NORMALIZER: dict[str, Any] = {
    "type": "Sequence",
    "normalizers": [
        {"type": "Prepend", "prepend": WORD_START},
        {"type": "Replace", "pattern": {"String": " "}, "content": WORD_START},
    ],
}
_UNKNOWN = "<unk>"

_T = TypeVar("_T")


class _AddedToken(BaseModel, strict=True):
    """A token that is matched before BPE, with the library's defaults."""

    content: str
    # The library panics if two tokens that absorb adjacent text overlap.
    single_word: Literal[False] = False
    lstrip: Literal[False] = False
    rstrip: Literal[False] = False
    normalized: bool = True
    special: bool = False


def _content(token: Any) -> Any:
    return token.get("content") if isinstance(token, dict) else token


_Named = Annotated[str, BeforeValidator(_content)]
"""The content of a token, which may be the text itself or an object with its properties."""


class _Config(BaseModel, strict=True):
    """The keys of `tokenizer_config.json` that are used, with the defaults of transformers."""

    bos_token: _Named | None = "<s>"  # noqa: S105 - no password
    eos_token: _Named | None = "</s>"  # noqa: S105 - likewise
    unk_token: _Named | None = _UNKNOWN
    sep_token: _Named | None = None
    pad_token: _Named | None = None
    cls_token: _Named | None = None
    mask_token: _Named | None = None
    extra_special_tokens: list[_Named] | dict[str, _Named] | None = None
    additional_special_tokens: list[_Named] | None = None
    added_tokens_decoder: dict[Annotated[int, Field(strict=False)], _AddedToken] | None = None
    add_prefix_space: bool | None = None
    legacy: bool | None = None
    split_special_tokens: bool | None = None

    def unknown(self) -> str:
        """The token of unknown characters."""
        return self.unk_token or _UNKNOWN

    def named(self) -> list[str]:
        """The named special tokens, in the order in which transformers adds them."""
        own = [
            *(self.bos_token, self.eos_token, self.unk_token, self.sep_token),
            *(self.pad_token, self.cls_token, self.mask_token),
        ]
        extra = self.extra_special_tokens or self.additional_special_tokens or []
        values = [*own, *(extra.values() if isinstance(extra, dict) else extra)]
        return [value for value in values if value is not None]


def open_tokenizer(folder: Path, *, needs_config: bool = True) -> tuple[Tokenizer, str]:
    """The tokenizer of a folder, and its unknown token.

    needs_config: whether `tokenizer_config.json` must exist, as in a bundle; a checkpoint may lack it. Raises a
    one-line ValueError with the path for a file that is missing, damaged, or not a BPE tokenizer.
    """
    config_path, path = folder / TOKENIZER_CONFIG_FILE, folder / TOKENIZER_FILE
    settings = _read(config_path, read_json) if needs_config or config_path.exists() else {}
    document = _read(path, _bpe_document)
    try:
        config = _Config.model_validate(settings)
    except ValidationError as error:
        raise ValueError(f"{config_path}: not a tokenizer file ({first_wrong_field(error)})") from None
    try:
        if document.get("normalizer") == _LLAMA_NORMALIZER:
            return _llama_tokenizer(document, config), config.unknown()
        _listed_tokens(document)
        unused = dict.fromkeys(("truncation", "padding", "post_processor", "decoder"))
        return Tokenizer.from_str(json.dumps({**document, **unused})), config.unknown()
    except BaseException as error:
        if not (isinstance(error, Exception) or is_panic(error)):
            raise
        raise ValueError(f"{path}: not a tokenizer file ({first_line(error)})") from None


def is_panic(error: BaseException) -> bool:
    """Whether an error comes from tokenizers' Rust code: a panic, which is not an Exception, or a bare Exception."""
    return type(error).__name__ == "PanicException" or type(error) is Exception


def _bpe_document(path: Path) -> dict[str, Any]:
    document = read_json(path)
    if not isinstance(document, dict):
        raise ValueError("expected a JSON object")  # noqa: TRY004 - about the file, not the argument
    model = document.get("model")
    if not isinstance(model, dict) or model.get("type", "BPE") != "BPE":
        raise ValueError("expected a BPE tokenizer, like VoxCPM's")
    if model.get("dropout"):
        raise ValueError("expected BPE without dropout, which makes tokens random")
    _check_steps(document)
    return document


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
    """Tokens matched before BPE, by id: those of the configuration, or else of the file, then the named ones."""
    listed = config.added_tokens_decoder
    records = _listed_tokens(document) if listed is None else [token for _, token in sorted(listed.items())]
    added = [AddedToken(**record.model_dump(exclude_unset=True)) for record in records]
    known = {record.content for record in records}
    for name in config.named():
        if name not in known:
            known.add(name)
            added.append(AddedToken(name, special=True))
    return added


def _listed_tokens(document: dict[str, Any]) -> list[_AddedToken]:
    listed = sorted(document.get("added_tokens") or (), key=itemgetter("id"))
    try:
        return [_AddedToken.model_validate(record) for record in listed]
    except ValidationError as error:
        raise ValueError(f"added_tokens: {first_wrong_field(error)}") from None


def _read(path: Path, read: Callable[[Path], _T]) -> _T:
    try:
        return read(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: expected a tokenizer file, but it cannot be read ({error})") from None


_NORMALIZER_STEPS = (*_LLAMA_NORMALIZER["normalizers"], {"type": "Lowercase"})
_MAX_STEPS = 16


def _check_steps(document: dict[str, Any]) -> None:
    """Raises a one-line ValueError for unsupported steps.

    Some can panic in tokenizers (0.23), which prints lines of Rust to standard error, take unbounded time, or make a
    text much longer.
    """
    for part, inner in (("normalizer", "normalizers"), ("pre_tokenizer", "pretokenizers")):
        whole = document.get(part)
        steps = whole.get(inner) if isinstance(whole, dict) and whole.get("type") == "Sequence" else [whole]
        if not isinstance(steps, list) or len(steps) > _MAX_STEPS:
            raise ValueError(f"expected at most {_MAX_STEPS} steps in its {part}")
        for step in steps:
            is_metaspace = isinstance(step, dict) and step.get("type") == "Metaspace"
            if step is not None and not (step in _NORMALIZER_STEPS if part == "normalizer" else is_metaspace):
                known = "Llama's and Lowercase" if part == "normalizer" else "Metaspace"
                raise ValueError(
                    f"unsupported step in its {part}: expected {known}, as in VoxCPM, got {str(step)[:60]}; remove it"
                )
