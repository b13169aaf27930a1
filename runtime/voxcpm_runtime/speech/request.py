"""What a call asks for: one frozen `Request`, built once by Python, command line, JSONL or HTTP, and never changed.

The token that cancels it, and the names of its parts as keywords of Python's API.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict

from voxcpm_constants.errors import VoxCPMError
from voxcpm_runtime.argument_types import (
    checked_text,
    instance,
    switch,
    text_argument,
    valid_unicode,
    whole_number,
    wrong_type,
)
from voxcpm_runtime.bundle.opening import Bundle
from voxcpm_runtime.model.flow_matching import NoiseSource
from voxcpm_runtime.options import Clean, GenerationOptions, checked_options
from voxcpm_runtime.speech.results import ProgressCallback
from voxcpm_runtime.speech.saved_segments import SavedSegments
from voxcpm_runtime.text.control import described, with_control
from voxcpm_runtime.text.lexicon import Lexicon, LexiconSource, lexicon_entries
from voxcpm_runtime.voices.recordings import Recordings, VoiceSource
from voxcpm_runtime.voices.store import default_voice
from voxcpm_runtime.voices.voice import Voice
from voxcpm_runtime.words.words import Word

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
        return self._event.is_set() or any(parent.cancelled for parent in self._parents)

    def check(self) -> None:
        """Raises Cancelled after `cancel`. It precedes every call of a step model, so a subclass may wait here."""
        for parent in self._parents:
            parent.check()
        if self._event.is_set():
            raise Cancelled("the generation was cancelled")


@dataclass(frozen=True)
class Request:
    """What to speak, how, and who listens. The options are checked; `planning.plan` reads and checks the rest."""

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
    parallel_segments: int = 1
    """The segments of a long text to speak at once, if it is not streamed; those that become its voice come first."""
    on_words: WordsCallback | None = None
    """Called with the words of each segment when it is spoken, before a stream yields its last samples."""

    def __post_init__(self) -> None:
        if self.text is not None:
            checked_text(self.text, "text")
        if self.control is not None:
            valid_unicode(text_argument(self.control, "control"), "control", "control")
        for name in ("progress", "on_words"):
            if (given := getattr(self, name)) is not None and not callable(given):
                raise wrong_type(given, name, "a function")
        if self.cancel is not None:
            instance(self.cancel, CancelToken, "cancel", "a CancelToken")
        switch(self.keep_partial, "keep_partial")
        whole_number(self.parallel_segments, "parallel_segments", 1, "segments")
        if self.saved_segments is not None:
            instance(self.saved_segments, SavedSegments, "saved_segments", "a SavedSegments")

    def voiced(self, bundle: Bundle) -> Recordings:
        """The recordings; without any, and without `zero_shot`, the voice that the bundle's checkpoint names."""
        is_default = self.recordings.is_empty and not self.options.zero_shot
        return Recordings(voice=default_voice(bundle)) if is_default else self.recordings

    def digest(self, bundle: Bundle) -> str:
        """SHA-256 over everything that determines the speech, including audio files, voice and bundle.

        Options at their defaults are left out, so that new options do not change the digest.
        Raises InputError for an audio file that cannot be read.
        """
        recordings = self.voiced(bundle)
        parts = {
            "bundle": bundle.digest,
            "text": with_control(self.text or "", described(self.control)),
            **recordings.digests(),
            "seed": self.seed,
            "options": self.options.changed(),
        }
        if lexicon := {**recordings.lexicon, **self.lexicon}:
            parts["lexicon"] = lexicon
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


_FIELDS = Request.__annotations__.keys() - {"text", "recordings", "options"}
AnyRequest = str | Mapping[str, Any] | Request
"""One of several utterances: its text, the arguments of `speak` by name, or a `Request`."""


def request_of(text: str | None, recordings: Recordings, given: dict[str, Any]) -> Request:
    """The request of a call with keywords: `voice`, fields of `Request`, and options.

    Raises InputError for an option out of range and a file that is not a voice, TypeError for an unknown keyword.
    """
    voice, lexicon = given.pop("voice", None), given.pop("lexicon", None)
    if voice is not None:
        recordings = recordings.with_voice(voice)
    own: dict[str, Any] = {} if lexicon is None else {"lexicon": lexicon_entries(lexicon)}
    for name in _FIELDS & given.keys():
        own[name] = given.pop(name)
    return Request(text, recordings, options=checked_options(given), **own)


class Keywords(TypedDict, total=False):
    """Names and types of a call's keywords, for type checkers.

    A test compares them with `Request` and `GenerationOptions`, which define them.
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
    parallel_segments: int
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
    zero_shot: bool
    speed: float
    markup: bool
    normalize: bool
    clean: Clean | None
    strict: bool
    trim_silence_vad: bool
    denoise: bool
