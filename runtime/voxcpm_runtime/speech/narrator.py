"""Text of any length: which parts are one utterance each, and speaking them one after another in one voice."""

from __future__ import annotations

import copy
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from voxcpm_constants.errors import InputError
from voxcpm_runtime.audio.files import Audio
from voxcpm_runtime.bundle.opening import Bundle
from voxcpm_runtime.model.driver import Driver, NoiseSource, Prefix
from voxcpm_runtime.model.sequence import Latents
from voxcpm_runtime.options import GenerationOptions
from voxcpm_runtime.speech.attempts import Utterance
from voxcpm_runtime.speech.cancellation import CancelToken
from voxcpm_runtime.speech.request import VoiceSize, audio_positions, build_request, read_text, said_text
from voxcpm_runtime.speech.results import SpokenSegment
from voxcpm_runtime.text.control import controlled_text
from voxcpm_runtime.text.letters import is_of_letters, spelled
from voxcpm_runtime.text.segments import Segment, one_segment, segments
from voxcpm_runtime.voices.voice import Turn, Voice, VoiceHeader, latent_space

# The longest that a token takes to say, slow speech included: by this a text's room in the KV cache is judged.
SECONDS_PER_TOKEN = 0.5
SECONDS_PER_LETTER = 0.12
# Most text tokens of a segment, unless asked otherwise. A voice of letters has heard short sentences only, and loses
# its place in longer ones (TRIALS.md).
SEGMENT_TOKENS = 200
SEGMENT_LETTERS = 80
# Beside what the text takes: audio start, and some patches of silence.
_SPARE_POSITIONS = 11
_LEAST_TOKENS = 8


@dataclass(frozen=True)
class Piece:
    """What is heard next: a patch, or a pause."""

    audio: Audio
    """(samples,)"""
    segment: int
    """Which it is of, or comes before, from 0."""
    patches: int
    """Of this segment so far; 0 for a pause."""


@dataclass(frozen=True)
class Randomness:
    """seed: of the first attempt at the first segment. rng: in its place, for all."""

    seed: int | None
    rng: NoiseSource | None

    def seed_of(self, segment: int, attempt: int) -> int | None:
        """A retry adds 1; a later segment has a seed of its own that follows from the first."""
        if self.seed is None:
            return None
        if segment == 0:
            return self.seed + attempt
        return int(np.random.SeedSequence([self.seed, segment]).generate_state(1)[0]) + attempt

    def noise(self, segment: int, attempt: int) -> NoiseSource:
        return self.rng if self.rng is not None else np.random.default_rng(self.seed_of(segment, attempt))


def plan_segments(
    bundle: Bundle, text: str, voice: VoiceSize | None, options: GenerationOptions, *, more: bool = False
) -> list[Segment]:
    """The text as one segment where it is not long, else in segments whose speech the KV cache holds.

    Without a voice room is left for the first segment, which the others continue. more: whether others follow in any
    case.
    """
    whole = [Segment(text, ends_paragraph=False)]
    count = _counter(bundle)
    if count(text) <= _longest(bundle, voice, options, anchored=more and voice is None):
        return whole
    target = _longest(bundle, voice, options, anchored=voice is None)
    # Where nothing can be said, whole or not, the error about the whole is the better one.
    return segments(text, count, max(target, _LEAST_TOKENS)) or whole


def split_sentence(
    bundle: Bundle, sentence: str, voice: VoiceSize | None, options: GenerationOptions
) -> list[Segment]:
    """A sentence, white space after it included, as segments; none where there is nothing to say."""
    whole = one_segment(sentence)
    parts = [
        part for segment in whole for part in plan_segments(bundle, segment.text, voice, options, more=True)
    ]
    return [*parts[:-1], *(Segment(part.text, whole[0].ends_paragraph) for part in parts[-1:])]


class Narrator:
    """Speaks segments in turn, all in one voice: the one given, or that of the first segment spoken.

    prefix: what the language models made of a voice (`cached_prefixes`). control: words before each segment's text
    that does not continue another.
    """

    def __init__(
        self,
        bundle: Bundle,
        driver: Driver,
        prefix: Callable[[Voice], Prefix],
        options: GenerationOptions,
        randomness: Randomness,
        *,
        voice: Voice | None,
        control: str | None,
        cancel: CancelToken,
    ) -> None:
        self._bundle = bundle
        self._driver = driver
        self._prefix = prefix
        self._options = options
        self._randomness = randomness
        self._cancel = cancel
        self._control = control
        self._given = voice is not None
        self.voice = voice

    def over(self, driver: Driver) -> Narrator:
        """The same voice, over another driver."""
        other = copy.copy(self)
        other._driver = driver  # noqa: SLF001 - its own class
        return other

    def utterance(self, segment: Segment) -> Utterance:
        """The segment, ready to be spoken. Raises InputError for one that cannot be."""
        words = read_text(self._bundle, self._controlled(segment.text), self.voice, self._options)
        request = build_request(self._bundle, words, self.voice, self._options)
        prefix = None if self.voice is None else self._prefix(self.voice)
        return Utterance(self._driver, request, prefix, self._cancel)

    def speak(self, segment: Segment, index: int, told: Callable[[Utterance, int], None]) -> SpokenSegment:
        """The whole segment, tried again while it is too long for its text. told: after every patch, with the index.

        Raises Cancelled.
        """
        utterance = self.utterance(segment)
        for _ in utterance.attempts(lambda attempt: self._randomness.noise(index, attempt)):
            told(utterance, index)
        spoken = self.spoken(segment, index, utterance)
        self.anchor(spoken)
        return spoken

    def spoken(self, segment: Segment, index: int, utterance: Utterance) -> SpokenSegment:
        """What has been spoken of a segment; of a cancelled one, what there was."""
        return SpokenSegment(
            text=segment.text,
            audio=utterance.audio,
            latents=utterance.latents,
            seed=self._randomness.seed_of(index, utterance.attempt - 1),
            attempts=utterance.attempt,
            stopped=utterance.stopped,
            too_long=utterance.request.options.retry_badcase and utterance.is_too_long(len(utterance.spoken)),
            ends_paragraph=segment.ends_paragraph,
        )

    def stream(self, segments: Iterable[Segment]) -> Iterator[Piece]:
        """Every segment as it is being spoken, a patch at a time, with pauses between paragraphs.

        Segments are asked for one by one, each when the one before has been heard. Raises Cancelled.
        """
        paused = False
        for index, segment in enumerate(segments):
            if paused:
                yield Piece(self.pause(), index, 0)
            paused = segment.ends_paragraph
            # Of the first segment the latents are needed after it; of the others nothing is kept.
            kept = []
            for patch, audio in self.utterance(segment).stream(
                lambda attempt, index=index: self._randomness.noise(index, attempt)  # type: ignore[misc]
            ):
                if self.voice is None:
                    kept.append(patch.latents)
                yield Piece(audio, index, patch.index + 1)
            if kept:
                self._anchor(segment.text, np.stack(kept))

    def pause(self) -> Audio:
        """The silence between two paragraphs."""
        rate = self._bundle.architecture.output_sample_rate
        return np.zeros(round(self._options.paragraph_pause * rate), np.float32)

    def anchor(self, spoken: SpokenSegment) -> None:
        """From the first segment on, where no voice was given, it is the voice."""
        self._anchor(spoken.text, spoken.latents)

    def _anchor(self, text: str, latents: Latents) -> None:
        if self.voice is None:
            said = said_text(self._controlled(text), self._options)
            self.voice = voice_of_speech(self._bundle, _parted(said), latents)

    def _controlled(self, text: str) -> str:
        """With the control before it, but for a segment that continues the first one, which had it."""
        if self._control is None or not (self._given or self.voice is None):
            return text
        continues = self.voice is not None and self.voice.prompt is not None
        generation = self._bundle.architecture.generation
        return controlled_text(text, self._control, generation=generation, continues=continues)


def voice_of_speech(bundle: Bundle, text: str, latents: Latents, name: str = "") -> Voice:
    """What was said as a voice to continue. text: of the speech; latents: (patches, frames, latent_dim)."""
    a = bundle.architecture
    header = VoiceHeader(
        name=name,
        generation=a.generation,
        latent_space=latent_space(a),
        sample_rate=a.input_sample_rate,
        turns=(Turn(text=text, patches=len(latents)),),
    )
    return Voice(header, prompt=np.asarray(latents, np.float32))


def _parted(transcript: str) -> str:
    """With a space before what follows, where its script has spaces."""
    return transcript if transcript[-1:].isspace() or _is_wide(transcript[-1:]) else f"{transcript} "


def _is_wide(char: str) -> bool:
    return unicodedata.east_asian_width(char) in "WF"


def _counter(bundle: Bundle) -> Callable[[str], int]:
    def count(text: str) -> int:
        try:
            said = spelled(text, bundle.tokenizer)
        except InputError:
            said = text
        return len(bundle.tokenizer(said))

    return count


def _longest(bundle: Bundle, voice: VoiceSize | None, options: GenerationOptions, *, anchored: bool) -> int:
    """Most text tokens of a segment; anchored: with room for another one of that length that it continues."""
    a = bundle.architecture
    letters = is_of_letters(bundle.tokenizer)
    seconds = SECONDS_PER_LETTER if letters else SECONDS_PER_TOKEN
    wanted = options.segment_tokens
    if wanted is None:
        wanted = SEGMENT_LETTERS if letters else SEGMENT_TOKENS
    positions = 1 + min(seconds / a.patch_seconds, options.retry_badcase_ratio_threshold)
    transcript = len(bundle.tokenizer(voice.transcript)) if voice and voice.transcript else 0
    room = bundle.manifest.sizes.kv_length - audio_positions(voice) - transcript - _SPARE_POSITIONS
    fits = room / positions
    if options.max_len is not None:
        fits = max(fits, room - options.max_len)
    return max(0, min(int(fits / 2 if anchored else fits), wanted))
