"""The generation options, declared once: `GenerationOptions`.

Each field's annotation gives its help text, range, unit and flag, from which Python keywords, command-line flags, JSONL
keys, range checks and the table in docs/python.md follow. Does not import numpy, so that the command line starts fast.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Integral
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from voxcpm_constants.bounds import MAX_EULER_STEPS, MAX_SPEED, MIN_SPEED
from voxcpm_constants.errors import InputError
from voxcpm_runtime.argument_types import real_number, switch, wrong_type

DEFAULT_MAX_LEN = 4096
"""Upstream's default, in patches; `retry_badcase_ratio_threshold` sets a lower limit except for very long texts."""
UPSTREAM_ORDER = (
    "cfg_value", "inference_timesteps", "min_len", "max_len", "normalize", "denoise", "retry_badcase",
    "retry_badcase_max_times", "retry_badcase_ratio_threshold",
)  # fmt: skip
"""Options that may also be positional, after text and recordings: upstream's, in upstream's order."""
DEFAULT_STEPS, FAST_STEPS = 10, 5  # Euler steps, upstream's and those of `fast`
Clean = Literal["markdown"]
SEGMENT_TOKENS = 200  # Default of `segment_tokens` for a checkpoint without a `speech.json`


@dataclass(frozen=True)
class Option:
    """The help text, range, unit and flags of one option."""

    help: str
    bounds: tuple[float, float] | None = None  # Smallest and largest number; None for a switch or choices
    unit: str = ""
    flags: tuple[str, ...] = ()  # Flags of the command line, if they differ from the field's name
    default: str = ""  # What None means, if it is the default
    panel: str = "Speech"  # Heading in the command line's help
    choices: tuple[str, ...] = ()  # Allowed values of a choice

    @property
    def full_help(self) -> str:
        """The help text with range, unit and default."""
        parts = [self.help]
        if self.bounds is not None:
            low, high = self.bounds
            parts.append(f"{low:g} to {high:g}{f' {self.unit}' if self.unit else ''}.")
        if self.default:
            parts.append(f"Default: {self.default}.")
        return " ".join(parts)


class Declared(NamedTuple):
    """One row of the option table: a field of `GenerationOptions`."""

    name: str
    type: Any  # int, float or bool, or one of them or None
    default: Any
    option: Option


@dataclass(frozen=True)
class GenerationOptions:
    """Generation options, with upstream's names and defaults. Raises a one-line InputError for a wrong value."""

    # fmt: off
    cfg_value: Annotated[float, Option(
        "Strength of classifier-free guidance; 1 disables it.", (0.0, 10.0),
    )] = 2.0
    inference_timesteps: Annotated[int | None, Option(
        "Euler steps per patch; with CFG-zero* the first 4 % have zero velocity.", (1, MAX_EULER_STEPS), "steps",
        default=f"{DEFAULT_STEPS}, with fast {FAST_STEPS}",
    )] = None
    fast: Annotated[bool, Option(
        f"Use {FAST_STEPS} Euler steps: no measured increase in WER; sound quality is untested.",
        flags=("--fast",),
    )] = False
    temperature: Annotated[float, Option(
        "Standard deviation of the initial noise of a patch.", (0.0, 10.0),
    )] = 1.0
    # Beyond these bounds time is not monotonic: its slope at the ends is 1 + c and 1 + c (1 - pi / 2).
    sway_sampling_coef: Annotated[float, Option(
        "How much denser the Euler steps are near the noise; 0 means evenly spaced.", (-1.0, 1.75),
    )] = 1.0
    use_cfg_zero_star: Annotated[bool, Option(
        "CFG-zero*: zero velocity in the first steps, and projected guidance (arXiv 2503.18886).",
        flags=("--cfg-zero-star/--no-cfg-zero-star",),
    )] = True
    min_len: Annotated[int, Option(
        "Minimum length: each segment has at least min_len + 2 patches, unless max_len ends the speech.",
        (0, 100_000), "patches",
    )] = 2
    max_len: Annotated[int | None, Option(
        "Maximum number of patches in total; in a session, per segment.", (1, 100_000), "patches",
        default=f"none; a segment has at most {DEFAULT_MAX_LEN}, or as many as fit in the KV cache",
    )] = None
    retry_badcase: Annotated[bool, Option(
        "Retry with the next seed if the speech is suspiciously long or short for its text.",
        flags=("--retry/--no-retry",),
    )] = True
    retry_badcase_max_times: Annotated[int, Option(
        "Maximum number of attempts; 0 means 1.", (0, 100), "attempts", ("--retry-times",),
    )] = 3
    retry_badcase_ratio_threshold: Annotated[float, Option(
        "Maximum length; also where speech becomes suspicious, unless this is 6 and there is a `speech.json`.",
        (0.1, 1000.0), "patches per text token", ("--retry-ratio",),
    )] = 6.0
    every_word: Annotated[bool, Option(
        "Do not stop before the last word, and repair skipped or repeated words; needs a bundle with alignment heads.",
        flags=("--every-word/--no-every-word",),
    )] = True
    segment_tokens: Annotated[int | None, Option(
        "Maximum number of text tokens per utterance; a longer text is spoken in segments.", (8, 100_000), "tokens",
        default=f"from the checkpoint's `speech.json`, otherwise {SEGMENT_TOKENS}",
    )] = None
    paragraph_pause: Annotated[float, Option(
        "Silence between the paragraphs of a text.", (0.0, 60.0), "seconds",
    )] = 0.6
    zero_shot: Annotated[bool, Option(
        "Without a voice, speak in another one with each seed, even if the checkpoint names one.",
        flags=("--zero-shot",),
    )] = False
    speed: Annotated[float, Option(
        "Speed factor at constant pitch; also applies to pauses between paragraphs.", (MIN_SPEED, MAX_SPEED),
    )] = 1.0
    markup: Annotated[bool, Option(
        "Read [pause 0.5s], [voice NAME], [rate 1.2], [spell] and SSML in the text.", flags=("--markup",),
    )] = False
    normalize: Annotated[bool, Option(
        "Spell out numbers, dates and symbols; Chinese needs the extra normalize.",
        flags=("--normalize",),
    )] = False
    clean: Annotated[Clean | None, Option(
        "`markdown`: leave out its marks and tags, and the URLs of its links, in subtitles, too.",
        choices=get_args(Clean), default="none",
    )] = None
    strict: Annotated[bool, Option(
        "Refuse a text with characters that the voice cannot say, instead of transliterating or skipping them.",
        flags=("--strict",),
    )] = False
    trim_silence_vad: Annotated[bool, Option(
        "Trim silence at both ends of prompt and reference to 200 ms.", flags=("--trim-silence",),
    )] = False
    # fmt: on

    def __post_init__(self) -> None:
        for name, type_, _, option in option_table():
            value = getattr(self, name)
            if value is None and get_origin(type_) is not None:
                continue
            if option.choices:
                if value not in option.choices:
                    raise wrong_type(value, name, " or ".join(map(repr, option.choices)))
                continue
            if option.bounds is None:
                switch(value, name)
                continue
            low, high = option.bounds
            whole = float not in (type_, *get_args(type_))
            if not low <= real_number(value) <= high or (whole and not isinstance(value, Integral)):
                kind = "a whole number" if whole else "a number"
                raise wrong_type(value, name, f"{kind} from {low:g} to {high:g} {option.unit}".rstrip())
        steps = self.inference_timesteps
        if self.fast and steps not in (None, FAST_STEPS):
            raise InputError(
                f"expected fast or inference_timesteps, got both: fast means {FAST_STEPS}, not {steps}"
            )
        if steps is None:
            object.__setattr__(self, "inference_timesteps", FAST_STEPS if self.fast else DEFAULT_STEPS)
        if self.clean and self.markup:
            raise InputError("clean cannot be used with markup, whose tags it would remove; give one of them")
        if self.max_len is not None and self.max_len < self.min_len:
            raise InputError(f"max_len ({self.max_len} patches) must be at least min_len ({self.min_len})")

    @property
    def min_patches(self) -> int:
        """Minimum number of patches per segment: upstream first reads the stop head at index `min_len` + 1."""
        return min(self.min_len + 2, self.max_len or self.min_len + 2)

    def patch_bound(self, text_tokens: int) -> int:
        """Maximum number of patches for a text, ignoring the KV cache (upstream `_generate`).

        Unlike upstream's, it is never below `min_patches`.
        """
        by_ratio = int(text_tokens * self.retry_badcase_ratio_threshold + 10)
        return max(min(by_ratio, self.max_len or DEFAULT_MAX_LEN), self.min_patches)

    def changed(self) -> dict[str, Any]:
        """The options that differ from their defaults, by name."""
        usual = vars(GenerationOptions())
        return {name: value for name, value in vars(self).items() if value != usual[name]}


@functools.cache
def option_table() -> tuple[Declared, ...]:
    """The rows of the option table, in the order of declaration."""
    hints = get_type_hints(GenerationOptions, include_extras=True)
    table: list[Declared] = []
    for field in fields(GenerationOptions):
        type_, option = get_args(hints[field.name])
        table.append(Declared(field.name, type_, field.default, option))
    return tuple(table)


def named_options(positional: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Positional and keyword options merged. Raises TypeError as Python does."""
    if len(positional) > len(UPSTREAM_ORDER):
        raise TypeError(
            f"expected at most {len(UPSTREAM_ORDER)} positional options ({', '.join(UPSTREAM_ORDER)}), "
            f"got {len(positional)}"
        )
    named = dict(zip(UPSTREAM_ORDER, positional, strict=False))
    if twice := [name for name in named if name in kwargs]:
        raise TypeError(f"got multiple values for argument {twice[0]!r}")
    return {**named, **kwargs}


def checked_options(kwargs: Mapping[str, Any]) -> GenerationOptions:
    """The options of a call, from keywords. Raises InputError for a wrong value, TypeError for an unknown name.

    Upstream's `denoise` is accepted if False; its `streaming` is rejected, since two methods replace it.
    """
    options = dict(kwargs)
    if switch(options.pop("denoise", False), "denoise"):
        raise InputError(
            "denoise is not supported: bundles do not contain upstream's denoiser; clean the prompt audio beforehand"
        )
    if "streaming" in options:
        raise InputError(
            "streaming is not supported: use generate for whole speech, generate_streaming for chunks"
        )
    if not options.keys() <= (names := GenerationOptions.__annotations__).keys():
        unknown = next(name for name in options if name not in names)
        close = difflib.get_close_matches(unknown, names, 1, 0.5)
        hint = f"did you mean {close[0]}?" if close else "see GenerationOptions for those that exist"
        raise TypeError(f"unexpected keyword argument {unknown!r}: {hint}")
    return GenerationOptions(**options)
