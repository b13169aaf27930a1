"""The arguments of `VoxCPM.speak`, and the token that cancels it."""

from __future__ import annotations

import hashlib
import json
import secrets
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, TypedDict

from voxcpm_constants.errors import InputError, MissingExtraError, VoxCPMError
from voxcpm_runtime.argument_types import (
    instance,
    switch,
    text_argument,
    valid_unicode,
    whole_number,
    wrong_type,
)
from voxcpm_runtime.model.flow_matching import NoiseSource
from voxcpm_runtime.options import Clean, GenerationOptions, checked_options
from voxcpm_runtime.speech.results import ProgressCallback
from voxcpm_runtime.speech.saved_segments import SavedSegments
from voxcpm_runtime.text.cleaning import Cleaner
from voxcpm_runtime.text.control import described, with_control
from voxcpm_runtime.text.lexicon import Lexicon, LexiconSource, lexicon_entries
from voxcpm_runtime.voices.recordings import Recordings, VoiceSource
from voxcpm_runtime.voices.voice import Voice
from voxcpm_runtime.words.words import Word

if TYPE_CHECKING:
    from voxcpm_runtime.markup.parsing import Part

_SEED_BITS = 32  # Length of a random seed
WordsCallback = Callable[[tuple[Word, ...]], object]


class Cancelled(VoxCPMError):
    """Raised by a generation after its `CancelToken` was cancelled."""

    exit_code = 130


class CancelToken:
    """Cancels a generation from any thread, before its next call of a step model.

    Several calls may share a token. parents: tokens whose cancellation also cancels this one.
    """

    def __init__(self, *parents: CancelToken) -> None:
        self._event = threading.Event()
        self._parents = parents

    def cancel(self) -> None:
        """Cancel the generation before its next step. This cannot be undone; a second call is a no-op."""
        self._event.set()

    @property
    def cancelled(self) -> bool:
        """Whether this token or one of its parents was cancelled."""
        for parent in self._parents:
            if parent.cancelled:
                return True
        return self._event.is_set()

    def check(self) -> None:
        """Raises Cancelled after `cancel`."""
        if self.cancelled:
            raise Cancelled("the generation was cancelled")


@dataclass(frozen=True)
class Arguments:
    """The arguments of one call. The options are checked; `plan` reads and checks the rest."""

    text: str | None = None  # The text to speak; None in a session, whose text arrives later
    recordings: Recordings = field(default_factory=Recordings)  # The voice to speak in
    control: str | None = None  # Voice or style in words, such as "warm, slow" (VoxCPM2)
    lexicon: Lexicon = field(default_factory=dict)
    """Pronunciations, in addition to those of the voice."""
    options: GenerationOptions = field(default_factory=GenerationOptions)
    seed: int | None = None  # The seed of the first attempt; random by default
    rng: NoiseSource | None = None  # A source of noise instead of a seed
    progress: ProgressCallback | None = None  # Called after every patch
    cancel: CancelToken | None = None  # Cancels the generation, which then raises Cancelled
    keep_partial: bool = False  # After `cancel`, return what was spoken so far instead of raising Cancelled
    find_voice: Callable[[str], Voice | None] | None = None
    """The voice of a name in markup, None for that of the call; by default stored and built-in voices."""
    saved_segments: SavedSegments | None = None
    """Where finished segments of a long text are saved, so that a later run can resume."""
    on_words: WordsCallback | None = None
    """Called with the words of each segment when it is spoken, before a stream yields its last samples."""

    def __post_init__(self) -> None:
        if self.control is not None:
            valid_unicode(text_argument(self.control, "control"), "control", "control")
        for name in ("progress", "on_words"):
            if (given := getattr(self, name)) is not None and not callable(given):
                raise wrong_type(given, name, "a function")
        if self.cancel is not None:
            instance(self.cancel, CancelToken, "cancel", "a CancelToken")
        switch(self.keep_partial, "keep_partial")
        if self.saved_segments is not None:
            instance(self.saved_segments, SavedSegments, "saved_segments", "a SavedSegments")

    @classmethod
    def of(cls, text: str | None, recordings: Recordings, given: Mapping[str, Any]) -> Arguments:
        """The arguments of a call with keywords: `voice`, fields of this class, and options.

        Raises InputError for an option out of range and a file that is not a voice, TypeError for an unknown keyword.
        """
        own = {name: value for name, value in given.items() if name in _FIELDS}
        options = {name: value for name, value in given.items() if name not in _FIELDS}
        if (voice := options.pop("voice", None)) is not None:
            recordings = recordings.with_voice(voice)
        if (lexicon := own.pop("lexicon", None)) is not None:
            own["lexicon"] = lexicon_entries(lexicon)
        return cls(text, recordings, options=checked_options(options), **own)

    def cleaned(self) -> Arguments:
        """A copy whose text is as `clean` reads it; that of a session is cleaned as it arrives."""
        if self.text is None or self.options.clean is None:
            return self
        options = replace(self.options, clean=None)
        return replace(self, text=Cleaner(self.options.clean)(self.text), options=options)

    def digest(self, bundle: str) -> str:
        """SHA-256 over everything that determines the speech, including audio files and the bundle's digest.

        Options at their defaults are left out, so that new options do not change the digest.
        Raises InputError for an audio file that cannot be read.
        """
        parts = {
            "bundle": bundle,
            "text": with_control(self.text or "", described(self.control)),
            **self.recordings.digests(),
            "seed": self.seed,
            "options": self.options.changed(),
        }
        if lexicon := {**self.recordings.lexicon, **self.lexicon}:
            parts["lexicon"] = lexicon
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


_FIELDS = tuple(f.name for f in fields(Arguments) if f.name not in ("text", "recordings", "options"))
AnyArguments = str | Mapping[str, Any] | Arguments
"""One of several utterances: its text, the arguments of `speak` by name, or `Arguments`."""


def first_seed(seed: object, rng: NoiseSource | None = None) -> int | None:
    """The seed of a call, by default a random one, so that all speech can be reproduced; None with an rng.

    Raises InputError for a seed that is not a whole number of at least 0, for an rng without `standard_normal`, and
    for both together.
    """
    if rng is None:
        return secrets.randbits(_SEED_BITS) if seed is None else whole_number(seed, "seed", 0)
    if seed is not None:
        raise InputError("give a seed or an rng, not both")
    if not callable(getattr(rng, "standard_normal", None)):
        raise wrong_type(rng, "rng", "a source of noise with the method standard_normal")
    return None


class Keywords(TypedDict, total=False):
    """Names and types of a call's keywords, for type checkers.

    A test compares them with `Arguments` and `GenerationOptions`, which define them.
    """

    voice: VoiceSource | None
    control: str | None
    lexicon: LexiconSource | None
    seed: int | None
    rng: NoiseSource | None
    progress: ProgressCallback | None
    cancel: CancelToken | None
    keep_partial: bool
    saved_segments: SavedSegments | None
    on_words: WordsCallback | None
    find_voice: Callable[[str], Voice | None] | None
    cfg_value: float
    inference_timesteps: int
    fast: bool
    temperature: float
    sway_sampling_coef: float
    use_cfg_zero_star: bool
    min_len: int
    max_len: int | None
    retry_badcase: bool
    retry_badcase_max_times: int
    retry_badcase_ratio_threshold: float
    every_word: bool
    segment_tokens: int | None
    paragraph_pause: float
    speed: float
    markup: bool
    normalize: bool
    clean: Clean | None
    strict: bool
    trim_silence_vad: bool
    denoise: bool


def parts_of(text: str, arguments: Arguments) -> tuple[Part, ...]:
    """The parts of a text with markup. Raises InputError, with the place, for what is not markup."""
    try:
        from voxcpm_runtime.markup.parsing import spoken_parts, stored_voice
    except ImportError as error:
        raise MissingExtraError(f"markup needs {error.name}: reinstall voxcpm-coreml") from None
    speed = arguments.options.speed
    pause = arguments.options.paragraph_pause / speed
    return spoken_parts(text, pause, arguments.find_voice or stored_voice, speed)
