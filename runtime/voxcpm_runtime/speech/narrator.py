"""Segments spoken in turn, all in one voice: the one given, or that of the first segments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np

from voxcpm_constants.errors import InputError, system_errors_as
from voxcpm_runtime.bundle.opening import Bundle
from voxcpm_runtime.model.driver import Prefix
from voxcpm_runtime.model.sequence import Latents
from voxcpm_runtime.speech.expected_length import Reason, letters_in
from voxcpm_runtime.speech.plan import Plan
from voxcpm_runtime.speech.planned_segment import PlannedSegment
from voxcpm_runtime.speech.results import Piece
from voxcpm_runtime.speech.utterance import Utterance, utterance
from voxcpm_runtime.text.input_text import without_control
from voxcpm_runtime.text.normalization import spelled_transcript
from voxcpm_runtime.voices.voice import Turn, Voice, VoiceHeader, latent_space


class Speaking(Protocol):
    """A function that speaks an utterance of a plan, as `attempts` does."""

    def __call__(self, utterance: Utterance, prefix: Prefix | None, *, retries: bool) -> Iterator[Piece]:
        """Arguments and errors: `attempts`."""


class Narrator:
    """Speaks a plan's segments in one voice.

    voice: the plan's, encoded. prefix: the function that gives what the language models compute for a voice
    (`prefix_cache`). speaking: the function that speaks each segment.
    """

    def __init__(
        self, plan: Plan, voice: Voice | None, prefix: Callable[[Voice], Prefix], speaking: Speaking
    ) -> None:
        self._plan = plan
        self._prefix = prefix
        self._speaking = speaking
        self.voice = voice
        """The voice of the next segment; None before the first segment if no voice was given."""
        self._prompt_letters: int | None = 0 if voice is None else _spoken_letters(voice, plan.bundle)
        """Letters that are spoken in the voice's prompt; None once a suspicious segment is part of it."""

    @system_errors_as(InputError)
    def speak(
        self, index: int, segment: PlannedSegment, *, retries: bool, left: int | None = None
    ) -> Iterator[Piece]:
        """The segment of that index, patch by patch. A piece without latents says that it begins again.

        retries: see `attempts`. left: patches that the speech may still have; None for any number. Raises Cancelled,
        and InputError if the voice leaves too little room or the system refuses something, such as memory.
        """
        prefix = None if self.voice is None else self._prefix(self.voice)
        letters = self._prompt_letters or 0
        asked = utterance(self._plan, index, segment, self.voice, prompt_letters=letters, left=left)
        return self._speaking(asked, prefix, retries=retries)

    def continue_from(self, segment: PlannedSegment, latents: Latents, reason: Reason) -> None:
        """Add a spoken segment with its patches (patches, frames, latent_dim) to the voice of the later segments.

        Only a segment that `anchors` changes the voice. reason: what is suspicious about it; then its pace is not
        expected of the later ones.
        """
        if not segment.anchors:
            return
        if self.voice is None:
            self.voice = voice_of_speech(self._plan.bundle, segment.transcript, latents)
        else:
            self.voice = self.voice.extended(segment.transcript, latents)
        if reason or self._prompt_letters is None:
            self._prompt_letters = None
        else:
            self._prompt_letters += segment.letters


def _spoken_letters(voice: Voice, bundle: Bundle) -> int:
    """Number of letters that are spoken in a voice's prompt, without the controls that its turns may begin with."""
    spoken = without_control if bundle.architecture.traits.takes_reference else str
    transcript = "".join(spoken(turn.text) for turn in voice.header.turns)
    return letters_in(spelled_transcript(transcript, bundle.tokenizer))


def voice_of_speech(bundle: Bundle, text: str, latents: Latents, name: str = "") -> Voice:
    """Speech as a voice to continue. text: what was said; latents: its patches (patches, frames, latent_dim)."""
    a = bundle.architecture
    header = VoiceHeader(
        name=name,
        generation=a.generation,
        latent_space=latent_space(a),
        sample_rate=a.input_sample_rate,
        turns=(Turn(text=text, patches=len(latents)),),
    )
    return Voice(header, prompt=np.asarray(latents, np.float32))
