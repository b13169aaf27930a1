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
    "min_len": _Range(0, 100_000, True, " patches"),
    "max_len": _Range(1, 100_000, True, " patches"),
    "retry_badcase_max_times": _Range(1, 100, True, " attempts"),
    "retry_badcase_ratio_threshold": _Range(0.1, 1000.0, False, " patches per text token"),
}


@dataclass(frozen=True)
class GenerationOptions:
    """Raises InputError, one line, for a value out of range."""

    cfg_value: float = 2.0
    """Strength of classifier-free guidance; 1 is none."""
    inference_timesteps: int = 10
    """Euler steps of a patch; the first of them moves nothing (CFG-zero*)."""
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

    def __post_init__(self) -> None:
        for name, allowed in _RANGES.items():
            value = getattr(self, name)
            if not (name == "max_len" and value is None):
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
    """Keyword arguments of `generate`: the fields of GenerationOptions, and two of upstream's that must stay off."""

    cfg_value: float
    inference_timesteps: int
    min_len: int
    max_len: int | None
    retry_badcase: bool
    retry_badcase_max_times: int
    retry_badcase_ratio_threshold: float
    normalize: bool
    denoise: bool


_NOT_HERE = {
    "normalize": "spell out numbers and abbreviations in the text",
    "denoise": "clean the prompt audio beforehand",
}


def checked_options(**given: Any) -> GenerationOptions:
    """The options of a call. Raises InputError for a value out of range, TypeError for an unknown name."""
    for name, instead in _NOT_HERE.items():
        if given.pop(name, False):
            raise InputError(f"{name} is upstream's own preprocessing and is not part of a bundle; {instead}")
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
