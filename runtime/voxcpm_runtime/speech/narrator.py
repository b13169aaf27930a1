"""Segments spoken in turn, all in one voice: the one given, or that of the first segments."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from voxcpm_constants.errors import InputError, system_errors_as
from voxcpm_runtime.audio.joins import faded_in, faded_out
from voxcpm_runtime.audio.pcm import Audio
from voxcpm_runtime.bundle.opening import Bundle
from voxcpm_runtime.model.batch_slots import BatchSlots
from voxcpm_runtime.model.driver import Prefix
from voxcpm_runtime.model.sequence import Latents
from voxcpm_runtime.speech.attempts import SpokenPatch, attempts
from voxcpm_runtime.speech.cancellation import CancelToken
from voxcpm_runtime.speech.expected_length import Reason, letters_in
from voxcpm_runtime.speech.plan import Plan, PlannedSegment
from voxcpm_runtime.speech.results import Piece
from voxcpm_runtime.speech.utterance import utterance
from voxcpm_runtime.text.control import without_control
from voxcpm_runtime.text.letters import spelled_transcript
from voxcpm_runtime.voices.voice import Turn, Voice, VoiceHeader, latent_space


class Narrator:
    """Speaks a plan's segments in one voice.

    voice: the plan's, encoded. slots: where they are spoken, each segment in one. prefix: from a voice to what the
    language models compute for it (`prefix_cache`).
    """

    def __init__(
        self, plan: Plan, voice: Voice | None, slots: BatchSlots, prefix: Callable[[Voice], Prefix]
    ) -> None:
        self._plan = plan
        self._slots = slots
        self._prefix = prefix
        self.voice = voice
        """The voice of the next segment; None before the first segment if no voice was given."""
        self._prompt_letters: int | None = 0 if voice is None else _spoken_letters(voice, plan.bundle)
        """Letters that are spoken in the voice's prompt; None once a suspicious segment is part of it."""

    def speak(
        self, index: int, segment: PlannedSegment, *, retries: bool, left: int | None = None
    ) -> Iterator[Piece]:
        """The segment of that index, patch by patch. A piece without latents says that it begins again.

        retries: see `attempts`. left: patches that the speech may still have; None for any number. Raises Cancelled,
        and InputError if the voice leaves too little room or the system refuses something, such as memory.
        """
        # Not around what a caller does with the pieces: its errors are its own.
        with system_errors_as(InputError):
            yield from self._pieces(index, segment, retries=retries, left=left)

    def _pieces(
        self, index: int, segment: PlannedSegment, *, retries: bool, left: int | None
    ) -> Iterator[Piece]:
        prefix = None if self.voice is None else self._prefix(self.voice)
        letters = self._prompt_letters or 0
        asked = utterance(self._plan, index, segment, self.voice, prompt_letters=letters, left=left)
        latents: list[Latents] = []
        reason: Reason = ""
        ending = CancelToken(self._plan.cancel)
        with self._slots.taken(ending.check) as slot:
            attempted = attempts(self._plan, asked, slot, prefix, ending, retries=retries)
            for spoken in slot.handed_over(attempted):
                patch = spoken.patch
                if patch is None:
                    latents.clear()
                    yield Piece(
                        spoken.audio,
                        index,
                        attempt=spoken.attempt,
                        attempts=spoken.attempts,
                        began=spoken.began,
                    )
                    continue
                reason = spoken.reason
                if segment.anchors:
                    # Later segments are not collected: a stream may be of any length.
                    latents.append(patch.latents)
                yield Piece(
                    audio=self._joining(index, segment, spoken),
                    segment=index,
                    patches=patch.index + 1,
                    latents=patch.latents,
                    attempt=spoken.attempt,
                    attempts=spoken.attempts,
                    began=spoken.began,
                    stops=patch.stops,
                    reason=spoken.reason,
                    expected_seconds=asked.length.seconds,
                    target_tokens=asked.target_tokens,
                )
        if latents:
            self.continue_from(segment, np.stack(latents), reason)

    def _joining(self, index: int, segment: PlannedSegment, spoken: SpokenPatch) -> Audio:
        """A patch's audio (samples,), without a step where its segment is joined to another one.

        A patch is known to be the last one when it is made, so streamed and whole speech have the same samples.
        """
        patch, audio = spoken.patch, spoken.audio
        rate = self._plan.bundle.architecture.output_sample_rate
        if index > 0 and patch is not None and patch.index == 0:
            audio = faded_in(audio, rate)
        # Whether another sentence follows in a session is not known; there, speech that a limit ended is faded.
        cut_off = patch is not None and not patch.stops
        joins = cut_off if segment.followed is None else segment.followed
        return faded_out(audio, rate) if spoken.last and joins else audio

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

    def pause(self) -> Audio:
        """The silence between two paragraphs, (samples,)."""
        rate = self._plan.bundle.architecture.output_sample_rate
        return np.zeros(round(self._plan.options.paragraph_pause * rate), np.float32)


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
