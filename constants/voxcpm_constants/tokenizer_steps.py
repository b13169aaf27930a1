"""The steps of a tokenizer.json that rewrite or split a text: which are run, and how much longer they may make it.

VoxCPM's own tokenisers have Lowercase, Prepend and Replace. The others here are harmless: tokenizers (0.23) neither
panics in them, which prints Rust's own lines on standard error beside any of ours, nor takes long. What it does with
steps that are not here depends on their content: Precompiled and FixedLength can panic. Decoders are not looked at,
because nothing is decoded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from voxcpm_constants.bounds import MAX_TOKENIZER_GROWTH, MAX_TOKENIZER_STEPS

_Step = dict[str, Any]
_Growth = Callable[[_Step], float]
"""The most characters that a step makes of one. Raises ValueError, one line, for a step that is not run."""

_SEQUENCE = "Sequence"


def check_steps(document: dict[str, Any]) -> None:
    """Raises ValueError, one line, if the steps of a tokenizer.json are others, more, or add more than expected."""
    growth, count = 1.0, 0
    for part, (inner, known) in _PARTS.items():
        steps = [document.get(part)]
        while steps:
            step = steps.pop()
            if step is None:
                continue
            count += 1
            kind = step.get("type") if isinstance(step, dict) else None
            if kind == _SEQUENCE and isinstance(step.get(inner), list):
                steps.extend(step[inner])
            elif isinstance(kind, str) and kind in known:
                growth *= known[kind](step)
            else:
                raise ValueError(
                    f"expected no steps of its {part} but {', '.join((_SEQUENCE, *known))}, "
                    f"got {str(kind)[:40]!r}; leave it out, as every VoxCPM does"
                )
    if count > MAX_TOKENIZER_STEPS:
        raise ValueError(f"expected at most {MAX_TOKENIZER_STEPS} steps, got {count}; leave some out")
    if growth > MAX_TOKENIZER_GROWTH:
        raise ValueError(
            f"expected steps that make a text at most {MAX_TOKENIZER_GROWTH} times as long, got {growth:.3g} times; "
            "leave out what adds to it: those of a VoxCPM replace a space by ▁ and put one before the text"
        )


def _at_most(growth: float) -> _Growth:
    return lambda step: growth


def _prepend(step: _Step) -> float:
    text = step.get("prepend")
    if not isinstance(text, str) or not text:
        # Without one, the library loses count of the text's characters, and panics in a later step.
        raise ValueError("expected a text of at least one character in its step Prepend; leave it out")
    return 1.0 + len(text)


def _replace(step: _Step) -> float:
    content = step.get("content")
    if not isinstance(content, str):
        raise ValueError("expected a text as the content of its step Replace")  # noqa: TRY004 - of the file
    return max(1.0, len(content) / len(_pattern(step)))


def _split(step: _Step) -> float:
    _pattern(step)
    return 1.0


def _pattern(step: _Step) -> str:
    """The text that a step looks for. An empty one is found between any two characters."""
    pattern = step.get("pattern")
    if not isinstance(pattern, dict) or "Regex" in pattern:
        raise ValueError(
            "it has a regular expression of its own, as no VoxCPM has; such an expression can take any time for a "
            "text, so it is not run: leave it out"
        )
    text = pattern.get("String")
    if not isinstance(text, str) or not text:
        raise ValueError(
            f"expected a pattern of at least one character in its step {step['type']}; leave it out"
        )
    return text


# Growth is that of the character that grows most in Unicode 16: U+FDFA has 18 characters in compatibility forms.
_NORMALIZERS: dict[str, _Growth] = {
    "Lowercase": _at_most(2),
    "Prepend": _prepend,
    "Replace": _replace,
    "NFC": _at_most(3),
    "NFD": _at_most(4),
    "NFKC": _at_most(18),
    "NFKD": _at_most(18),
    "Strip": _at_most(1),
    "StripAccents": _at_most(1),
}
_PRE_TOKENIZERS: dict[str, _Growth] = {
    "ByteLevel": _at_most(5),  # a character for each byte of UTF-8, and one before each piece
    "Digits": _at_most(1),
    "Metaspace": _at_most(2),  # may stand before each piece
    "Punctuation": _at_most(1),
    "Split": _split,
    "Whitespace": _at_most(1),
    "WhitespaceSplit": _at_most(1),
}
_PARTS = {"normalizer": ("normalizers", _NORMALIZERS), "pre_tokenizer": ("pretokenizers", _PRE_TOKENIZERS)}
