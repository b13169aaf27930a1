"""The plan of one call: everything is read, checked, tokenised and cut into segments here, once, without a step model.

arguments ─► options, randomness, voice, control ─► text ─► segments ─► tokens ─► room in the KV cache
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from voxcpm_constants.architecture import Architecture
from voxcpm_constants.errors import InputError
from voxcpm_runtime.bundle.opening import Bundle
from voxcpm_runtime.model.driver import Driver
from voxcpm_runtime.options import GenerationOptions, whole_number
from voxcpm_runtime.speech.arguments import Arguments
from voxcpm_runtime.speech.cancellation import CancelToken
from voxcpm_runtime.speech.kv_room import longest_segment, patch_limit, positions
from voxcpm_runtime.speech.progress import ProgressCallback, ProgressReporter
from voxcpm_runtime.speech.randomness import Randomness, randomness
from voxcpm_runtime.speech.saved_segments import SavedSegments
from voxcpm_runtime.text.control import controlled, described, require_references
from voxcpm_runtime.text.letters import spelled, spelled_transcript
from voxcpm_runtime.text.segments import Segment, one_segment, segments
from voxcpm_runtime.text.words import parted, said_text
from voxcpm_runtime.voices.recordings import Recordings, UnencodedVoice
from voxcpm_runtime.voices.voice import Voice

LEAST_SEGMENT_TOKENS = 8
"""Tokens that a segment may have even where the KV cache seems too short for their speech."""


@dataclass(frozen=True)
class PlannedSegment:
    """One utterance of the speech, as tokens. A text that is not long is one segment."""

    text: str
    """The segment as the caller wrote it."""
    transcript: str
    """What a segment that continues this one says before its own text: this one as it is said."""
    tokens: list[int]
    """Tokens of the prompt's transcript and of the text, tokenised as one."""
    transcript_tokens: list[int]
    """Tokens of the transcript alone; its last one may be another one when a text follows."""
    target_tokens: int
    """How many tokens the text has alone."""
    ends_paragraph: bool
    """Whether a blank line follows."""


@dataclass(frozen=True)
class Plan:
    """What is to be spoken, and how; make one with `plan`."""

    bundle: Bundle
    voice: Voice | UnencodedVoice | None
    """The voice that was given; None where the first segment's voice is continued."""
    description: str
    """The control, without its parentheses; empty for none."""
    options: GenerationOptions
    randomness: Randomness
    progress: ProgressCallback | None
    cancel: CancelToken
    keep_partial: bool
    parallel_segments: int
    saved_segments: SavedSegments | None
    segments: tuple[PlannedSegment, ...] = ()
    """The whole text; none where it comes later, as in a session."""

    def split(self, text: str, *, more: bool = False) -> list[Segment]:
        """The text as one segment where it is not long, else in segments whose speech the KV cache holds.

        Without a voice room is left for the first segment, which the others continue. more: whether other segments
        follow in any case.
        """
        anchored = self.voice is None
        if self._count(text) <= longest_segment(
            self.bundle, self.voice, self.options, anchored=more and anchored
        ):
            return [Segment(text, ends_paragraph=False)]
        target = longest_segment(self.bundle, self.voice, self.options, anchored=anchored)
        # Where nothing can be said, whole or not, the error about the whole is the better one.
        parts = segments(text, self._count, max(target, LEAST_SEGMENT_TOKENS))
        return parts or [Segment(text, ends_paragraph=False)]

    def split_sentence(self, sentence: str) -> list[Segment]:
        """A sentence, white space after it included, as segments; none where there is nothing to say."""
        whole = one_segment(sentence)
        parts = [part for segment in whole for part in self.split(segment.text, more=True)]
        return [*parts[:-1], *(Segment(part.text, whole[0].ends_paragraph) for part in parts[-1:])]

    def read(self, segments: Iterable[Segment]) -> Iterator[PlannedSegment]:
        """The segments in turn, tokenised and checked. Without a voice, each continues the first one.

        Raises InputError for one that cannot be said, or not within the KV cache, and MissingExtraError for
        `normalize` without its packages.
        """
        first: PlannedSegment | None = None
        for segment in segments:
            planned = self._read(segment, first)
            first = first or planned
            yield planned

    def limit(self, segment: PlannedSegment, voice: Voice | UnencodedVoice | None) -> int:
        """Most patches of a segment in a voice. Raises InputError when not even the shortest speech fits."""
        taken = positions(len(segment.tokens), voice)
        return patch_limit(taken, segment.target_tokens, self.options, self.bundle.manifest.sizes.kv_length)

    def encoded_voice(self, driver: Driver) -> Voice | None:
        """The voice that was given, its recordings encoded by the AudioVAE encoder of `driver`."""
        return self.voice.encoded(driver) if isinstance(self.voice, UnencodedVoice) else self.voice

    def reporter(self) -> ProgressReporter:
        """A reporter of the progress of this plan's segments, beginning now."""
        texts = [segment.text for segment in self.segments]
        return ProgressReporter(self.progress, texts, self.bundle.architecture.patch_seconds)

    def _read(self, segment: Segment, first: PlannedSegment | None) -> PlannedSegment:
        """first: the segment whose voice is continued where none was given."""
        tokenizer = self.bundle.tokenizer
        # A segment that continues the first one continues its style, too.
        controls = self.voice is not None or first is None
        text = controlled(segment.text, self.description) if controls else segment.text
        said = said_text(text, normalize=self.options.normalize)
        target = spelled(said, tokenizer)
        if self.voice is not None:
            transcript = spelled_transcript(self.voice.transcript, tokenizer)
        else:
            transcript = "" if first is None else spelled_transcript(first.transcript, tokenizer)
        if unknown := tokenizer.unknown_characters(transcript + target):
            warnings.warn(f"this voice has no token for {unknown!r}, which it will not speak", stacklevel=4)
        planned = PlannedSegment(
            text=segment.text,
            transcript=parted(said),
            # The prompt's transcript as it is given, trailing space or none.
            tokens=tokenizer(transcript + target),
            transcript_tokens=tokenizer(transcript) if transcript else [],
            target_tokens=len(tokenizer(target)),
            ends_paragraph=segment.ends_paragraph,
        )
        self.limit(planned, self.voice)
        return planned

    def _count(self, text: str) -> int:
        try:
            said = spelled(text, self.bundle.tokenizer)
        except InputError:
            said = text
        return len(self.bundle.tokenizer(said))


def plan(bundle: Bundle, arguments: Arguments) -> Plan:
    """The plan of a call. It reads recordings, but runs no step model.

    Raises InputError, one line, for anything that cannot be spoken, MissingExtraError for `normalize` without its
    packages, and Cancelled where the call was cancelled before it began.
    """
    options, cancel = arguments.options, arguments.cancel or CancelToken()
    if not arguments.keep_partial:
        # Of many utterances with one token, those whose turn has not come are not begun.
        cancel.check()
    check_generation(bundle.architecture, arguments.recordings, arguments.control)
    unread = Plan(
        bundle=bundle,
        voice=arguments.recordings.read(bundle.architecture, trimmed=options.trim_silence_vad),
        description=described(arguments.control),
        options=options,
        randomness=randomness(arguments.seed, arguments.rng),
        progress=arguments.progress,
        cancel=cancel,
        keep_partial=bool(arguments.keep_partial),
        parallel_segments=whole_number(arguments.parallel_segments, "parallel_segments", 1),
        saved_segments=arguments.saved_segments,
    )
    if arguments.text is None:
        return unread
    return replace(unread, segments=tuple(unread.read(unread.split(arguments.text))))


def check_generation(a: Architecture, recordings: Recordings, control: str | None) -> None:
    """Check what only VoxCPM2 has.

    Raises InputError for a reference or a control on an earlier generation, and for a control beside a prompt.
    """
    if recordings.reference is not None:
        require_references(a, "a reference voice", "give a prompt")
    if not described(control):
        return
    require_references(
        a, "control (voice design, style control)", "leave it out, or give a prompt to continue"
    )
    if recordings.continues:
        raise InputError(
            "control cannot be used together with a prompt to continue, which brings its own style; "
            "give one of them, or the audio as a reference"
        )
