"""The steps of a tokenizer.json that rewrite or split a text: which of them are run, and how often.

VoxCPM's own tokenisers have Lowercase, Prepend and Replace. The other steps allowed here neither panic in tokenizers
(0.23), which prints lines of Rust on standard error, nor take long. Others can panic, such as Precompiled and
FixedLength, depending on their content. Decoders are not checked, because nothing is decoded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from voxcpm_constants.bounds import MAX_TOKENIZER_GROWTH, MAX_TOKENIZER_STEPS

_NORMALIZERS = ("Lowercase", "Prepend", "Replace", "NFC", "NFD", "NFKC", "NFKD", "Strip", "StripAccents")
_PRE_TOKENIZERS = (
    "ByteLevel",
    "Digits",
    "Metaspace",
    "Punctuation",
    "Split",
    "Whitespace",
    "WhitespaceSplit",
)
_PARTS = {"normalizer": ("normalizers", _NORMALIZERS), "pre_tokenizer": ("pretokenizers", _PRE_TOKENIZERS)}
# Steps with a text of their own. Each of the others is allowed once, which bounds how much longer they make a text.
_WITH_TEXT = ("Prepend", "Replace", "Split")


def check_steps(document: dict[str, Any]) -> None:
    """Raises ValueError, one line, for steps that are unknown, too many, or make a text much longer."""
    growth = 1.0
    kinds: list[str] = []
    for part, (inner, known) in _PARTS.items():
        for step in _steps(document.get(part), inner):
            kind = step.get("type") if isinstance(step, dict) else None
            if kind not in known:
                raise ValueError(
                    f"expected no steps of its {part} but Sequence, {', '.join(known)}, got {str(kind)[:40]!r}; "
                    "leave it out, as every VoxCPM does"
                )
            if kind in _WITH_TEXT:
                growth *= _growth(step)
            elif kind in kinds:
                raise ValueError(f"expected its step {kind} once; leave the others out")
            kinds.append(kind)
    if len(kinds) > MAX_TOKENIZER_STEPS:
        raise ValueError(f"expected at most {MAX_TOKENIZER_STEPS} steps, got {len(kinds)}; leave some out")
    if growth > MAX_TOKENIZER_GROWTH:
        raise ValueError(
            f"expected steps that make a text at most {MAX_TOKENIZER_GROWTH} times as long, got {growth:.3g} times; "
            "a VoxCPM replaces a space by ▁ and puts one before the text"
        )


def _steps(step: Any, inner: str) -> Iterator[Any]:
    """The steps of a part, those in a Sequence one by one."""
    if isinstance(step, dict) and step.get("type") == "Sequence" and isinstance(step.get(inner), list):
        for each in step[inner]:
            yield from _steps(each, inner)
    elif step is not None:
        yield step


def _growth(step: dict[str, Any]) -> float:
    """By how much a step can lengthen a text. Raises ValueError for a regular expression, and for an empty text."""
    kind = step["type"]
    if kind == "Prepend":
        return 1.0 + len(_text(step.get("prepend"), kind))
    pattern = step.get("pattern")
    if not isinstance(pattern, dict) or "Regex" in pattern:
        raise ValueError(
            "it has a regular expression of its own, which can take any time, and which no VoxCPM has; leave it out"
        )
    found = len(_text(pattern.get("String"), kind))
    if kind == "Split":
        return 1.0
    content = step.get("content")
    if not isinstance(content, str):
        raise ValueError("expected a text as the content of its step Replace")  # noqa: TRY004 - of the file
    return max(1.0, len(content) / found)


def _text(value: Any, kind: str) -> str:
    # An empty Prepend makes a later step panic, and an empty pattern is found between any two characters.
    if not isinstance(value, str) or not value:
        raise ValueError(f"expected a text of at least one character in its step {kind}; leave it out")
    return value
