"""The knobs of one call of `generate`, with upstream's names and defaults, checked once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict

import numpy as np

from voxcpm_constants.errors import InputError

DEFAULT_MAX_LEN = 4096
"""Patches; upstream's default, which the ratio of audio to text undercuts for all but the longest texts."""


class _Range(NamedTuple):
    low: float
    high: float
    whole: bool
    unit: str


_RANGES = {
    "cfg_value": _Range(0.1, 10.0, False, ""),
    "inference_timesteps": _Range(1, 100, True, " steps"),
    "temperature": _Range(0.0, 10.0, False, ""),
    # Beyond these bounds time would run backwards somewhere: its slope at the ends is 1 + c and 1 + c (1 - pi / 2).
    "sway_sampling_coef": _Range(-1.0, 1.75, False, ""),
    "min_len": _Range(0, 100_000, True, " patches"),
    "max_len": _Range(1, 100_000, True, " patches"),
    "retry_badcase_max_times": _Range(1, 100, True, " attempts"),
    "retry_badcase_ratio_threshold": _Range(0.1, 1000.0, False, " patches per text token"),
    "segment_tokens": _Range(8, 100_000, True, " tokens"),
    "paragraph_pause": _Range(0.0, 60.0, False, " seconds"),
}


# None takes a value that follows from the bundle, the text or both.
_OPEN = ("max_len", "segment_tokens")
_SWITCHES = ("use_cfg_zero_star", "retry_badcase", "normalize", "trim_silence_vad")


@dataclass(frozen=True)
class GenerationOptions:
    """Raises InputError, one line, for a value out of range."""

    cfg_value: float = 2.0
    """Strength of classifier-free guidance; 1 is none."""
    inference_timesteps: int = 10
    """Euler steps of a patch; with CFG-zero* the first of them moves nothing."""
    temperature: float = 1.0
    """Deviation of the noise that a patch starts from."""
    sway_sampling_coef: float = 1.0
    """How much denser the Euler steps are near the noise; 0 spaces them evenly."""
    use_cfg_zero_star: bool = True
    """No velocity in the first 4 % of the steps, and a projected unconditional one (arXiv 2503.18886)."""
    min_len: int = 2
    """The stop head is not asked before patch `min_len + 1`, counted from 0."""
    max_len: int | None = None
    """Most patches to generate; None is upstream's 4096, or what fits into the KV cache if that is less."""
    retry_badcase: bool = True
    """Generate again, with the next seed, when the speech is suspiciously long for its text."""
    retry_badcase_max_times: int = 3
    """Attempts in all."""
    retry_badcase_ratio_threshold: float = 6.0
    """Patches per text token from which speech counts as too long; it bounds the length as well."""
    segment_tokens: int | None = None
    """Most text tokens of one utterance, or fewer where the KV cache is short; a longer text is spoken in segments.

    None is 200, or 80 in a voice whose vocabulary is letters, such as the built-in one."""
    paragraph_pause: float = 0.6
    """Seconds of silence between the paragraphs of a text that is spoken in segments."""
    normalize: bool = False
    """Write numbers, dates and symbols of the text in words (extra `normalize`)."""
    trim_silence_vad: bool = False
    """Cut silence from both ends of the prompt and the reference, but for 200 ms."""

    def __post_init__(self) -> None:
        for name in _SWITCHES:
            if not isinstance(getattr(self, name), bool | np.bool_):
                raise InputError(f"{name} must be True or False, got {getattr(self, name)!r}")
        for name, allowed in _RANGES.items():
            value = getattr(self, name)
            if not (name in _OPEN and value is None):
                _check(name, value, allowed)
        if self.max_len is not None and self.max_len < self.min_len:
            raise InputError(f"max_len ({self.max_len} patches) must be at least min_len ({self.min_len})")


def _check(name: str, value: object, allowed: _Range) -> None:
    kinds = (int, np.integer) if allowed.whole else (int, float, np.integer, np.floating)
    if isinstance(value, bool) or not isinstance(value, kinds) or not allowed.low <= value <= allowed.high:
        word = "a whole number" if allowed.whole else "a number"
        span = f"from {allowed.low:g} to {allowed.high:g}{allowed.unit}"
        raise InputError(f"{name} must be {word} {span}, got {value!r}")


class OptionArguments(TypedDict, total=False):
    """Keyword arguments of `generate`: the fields of GenerationOptions, and one of upstream's that must stay off."""

    cfg_value: float
    inference_timesteps: int
    temperature: float
    sway_sampling_coef: float
    use_cfg_zero_star: bool
    min_len: int
    max_len: int | None
    retry_badcase: bool
    retry_badcase_max_times: int
    retry_badcase_ratio_threshold: float
    segment_tokens: int | None
    paragraph_pause: float
    normalize: bool
    trim_silence_vad: bool
    denoise: bool


def checked_options(**given: Any) -> GenerationOptions:
    """The options of a call. Raises InputError for a value out of range, TypeError for an unknown name."""
    if given.pop("denoise", False):
        raise InputError(
            "denoise is a model of upstream's own and is not part of a bundle; clean the prompt audio beforehand"
        )
    return GenerationOptions(**given)


def patch_bound(target_tokens: int, options: GenerationOptions) -> int:
    """Most patches for a text of `target_tokens` tokens, were the KV cache endless (upstream `_generate`)."""
    by_ratio = int(target_tokens * options.retry_badcase_ratio_threshold + 10)
    return min(by_ratio, options.max_len or DEFAULT_MAX_LEN)


def patch_limit(positions: int, target_tokens: int, options: GenerationOptions, capacity: int) -> int:
    """Most patches that may be generated after a sequence of `positions` in a KV cache of `capacity` positions.

    Raises InputError when a max_len that was asked for does not fit, or not even the shortest speech does.
    """
    wanted = patch_bound(target_tokens, options)
    least = wanted if options.max_len is not None else min(wanted, options.min_len + 2)
    if positions + least > capacity:
        raise InputError(
            f"text and prompt take {positions} positions and the speech at least {least}: {positions + least} needed, "
            f"but the KV cache has {capacity}; shorten the text, the prompt or max_len, "
            "or convert with a greater --max-length"
        )
    return min(wanted, capacity - positions)
