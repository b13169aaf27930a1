"""The arguments of a call of `VoxCPM.speak`, before anything is read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypedDict

from voxcpm_constants.errors import InputError
from voxcpm_runtime.argument_types import function, instance, shown, switch, text_argument, wrong_type
from voxcpm_runtime.model.flow_matching import NoiseSource
from voxcpm_runtime.options import GenerationOptions, checked_options
from voxcpm_runtime.speech.cancellation import CancelToken
from voxcpm_runtime.speech.results import ProgressCallback
from voxcpm_runtime.speech.saved_segments import SavedSegments
from voxcpm_runtime.text.input_text import checked_text, controlled, described, valid_unicode
from voxcpm_runtime.voices.recordings import Recordings, VoiceSource


@dataclass(frozen=True)
class Arguments:
    """The arguments of one call. The options are checked; `plan` reads and checks the rest."""

    text: str | None = None
    """What to say; None if it comes later, as in a session."""
    recordings: Recordings = field(default_factory=Recordings)
    """The voice to speak in."""
    control: str | None = None
    """Voice or style in words, such as "warm, slow" (VoxCPM2)."""
    options: GenerationOptions = field(default_factory=GenerationOptions)
    seed: int | None = None
    """The seed of the first attempt; by default a fresh one."""
    rng: NoiseSource | None = None
    """A source of noise instead of a seed."""
    progress: ProgressCallback | None = None
    """Called after every patch."""
    cancel: CancelToken | None = None
    """Ends the generation between two Euler steps; then Cancelled is raised."""
    keep_partial: bool = False
    """After `cancel`, return what was spoken until then; do not raise Cancelled."""
    saved_segments: SavedSegments | None = None
    """Where finished segments of a long text are saved, and found again by a later run."""

    def __post_init__(self) -> None:
        if self.text is not None:
            checked_text(self.text, "text")
        if self.control is not None:
            valid_unicode(text_argument(self.control, "control"), "control", "control")
        if self.progress is not None:
            function(self.progress, "progress")
        if self.cancel is not None:
            instance(self.cancel, CancelToken, "cancel", "a CancelToken")
        switch(self.keep_partial, "keep_partial")
        if self.saved_segments is not None:
            instance(self.saved_segments, SavedSegments, "saved_segments", "a SavedSegments")

    @classmethod
    def of(cls, text: str | None, recordings: Recordings, given: Mapping[str, Any]) -> Arguments:
        """The arguments of a call with keywords: `voice`, fields of this class, and options.

        Raises InputError for a text without words, an option out of range and a file that is no voice, TypeError for
        an unknown keyword.
        """
        own: dict[str, Any] = {}
        options: dict[str, Any] = {}
        for name, value in given.items():
            (own if name in _OWN else options)[name] = value
        if (voice := options.pop("voice", None)) is not None:
            recordings = recordings.in_voice(voice)
        return cls(text, recordings, options=checked_options(options), **own)

    def digest(self, bundle: str) -> str:
        """SHA-256 over everything that determines the speech: these arguments, the content of the audio files, and
        the bundle's digest.

        Options at their defaults are left out, so that the digest stays the same in a release with more options.
        Raises InputError for an audio file that cannot be read.
        """
        parts = {
            "bundle": bundle,
            "text": controlled(self.text or "", described(self.control)),
            **self.recordings.digests(),
            "seed": self.seed,
            "options": self.options.changed(),
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


AnyArguments = str | Mapping[str, Any] | Arguments
"""One utterance of several: its text, arguments of `speak` by name, or `Arguments`."""


def several(utterances: object) -> list[AnyArguments]:
    """Utterances as a list. Raises InputError for what has none, or is one by itself, such as a text."""
    if isinstance(utterances, str | bytes | Mapping) or not isinstance(utterances, Iterable):
        raise wrong_type(utterances, "utterances", "a list of texts, or of arguments by name")
    return list(utterances)


def named_arguments(given: str | Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `VoxCPM.plan` for an utterance, by name. Raises InputError for a name that it does not have."""
    if not isinstance(given, str | Mapping):
        raise wrong_type(given, "an utterance", "a text or a mapping of arguments by name")
    named: dict[str, Any] = {"text": given} if isinstance(given, str) else dict(given)
    known = ("text", *_RECORDINGS, *Keywords.__annotations__)
    if unknown := [name for name in named if name not in known]:
        raise InputError(
            f"an utterance has no argument {shown(unknown[0])}; expected some of {', '.join(known)}"
        )
    if "text" not in named:
        raise InputError("an utterance has no text; expected something to say", argument="text")
    return named


_RECORDINGS = ("prompt_wav_path", "prompt_text", "reference_wav_path")
_OWN = tuple(f.name for f in fields(Arguments) if f.name not in ("text", "recordings", "options"))


class Keywords(TypedDict, total=False):
    """Names and types of a call's keywords, for type checkers, which cannot read the tables.

    A test compares them with `Arguments` and `GenerationOptions`, which declare everything else.
    """

    voice: VoiceSource | None
    control: str | None
    seed: int | None
    rng: NoiseSource | None
    progress: ProgressCallback | None
    cancel: CancelToken | None
    keep_partial: bool
    saved_segments: SavedSegments | None
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
