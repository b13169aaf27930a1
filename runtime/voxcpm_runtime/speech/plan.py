"""The plan of one call: everything is read, checked, tokenised and cut into segments here, once, without a step model.

arguments ─► options, randomness, voice, control ─► text ─► segments ─► tokens ─► room in the KV cache
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from voxcpm_constants.architecture import Architecture
from voxcpm_constants.errors import InputError
from voxcpm_runtime.bundle.opening import Bundle
from voxcpm_runtime.model.driver import Driver
from voxcpm_runtime.options import GenerationOptions, whole_number
from voxcpm_runtime.speech.arguments import Arguments
from voxcpm_runtime.speech.cancellation import CancelToken
from voxcpm_runtime.speech.expected_length import letters_in
from voxcpm_runtime.speech.kv_room import least_anchor, longest_segment, patch_limit, positions
from voxcpm_runtime.speech.progress import ProgressCallback, ProgressReporter
from voxcpm_runtime.speech.randomness import Randomness, randomness
from voxcpm_runtime.speech.saved_segments import SavedSegments
from voxcpm_runtime.text.control import controlled, described, require_references
from voxcpm_runtime.text.letters import continued_transcript, spelled, spelled_transcript
from voxcpm_runtime.text.segments import Segment, one_segment, segments
from voxcpm_runtime.text.words import said_text
from voxcpm_runtime.voices.recordings import Recordings, UnencodedVoice
from voxcpm_runtime.voices.voice import Voice

LEAST_SEGMENT_TOKENS = 8
"""Text tokens that a segment may always have, even if the KV cache seems too short for their speech."""


@dataclass(frozen=True)
class PlannedSegment:
    """One utterance of the speech, as tokens. A short text is one segment."""

    text: str
    """The segment as the caller wrote it."""
    transcript: str
    """The prompt's transcript for a segment that continues this one: as this one is said, before it is spelled."""
    tokens: list[int]
    """Tokens of the prompt's transcript and of the text, tokenised together."""
    transcript_tokens: list[int]
    """Tokens of the prompt's transcript alone; the last one may differ from `tokens`, where the text follows."""
    target_tokens: int
    """Number of tokens of the text alone."""
    letters: int
    """Letters and digits of the text alone, which its expected time follows from."""
    ends_paragraph: bool
    """Whether a blank line follows."""
    anchors: bool = False
    """Whether its speech becomes a part of the voice that later segments continue, as no voice was given."""


@dataclass(frozen=True)
class Plan:
    """What is to be spoken, and how; make one with `plan`."""

    bundle: Bundle
    voice: Voice | UnencodedVoice | None
    """The voice that was given; None if that of the first segments is continued."""
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
    """The segments of the whole text; empty if the text comes later, as in a session."""

    def split(self, text: str, *, more: bool = False) -> list[Segment]:
        """The text as one segment if it is short, otherwise in segments whose speech fits into the KV cache.

        Without a voice, room is left for the first segment, which the others continue. more: whether there are other
        segments in any case.
        """
        anchored = self.voice is None
        alone = longest_segment(self.bundle, self.voice, self.options, anchored=more and anchored)
        if self._count(text, alone) <= alone:
            return [Segment(text, ends_paragraph=False)]
        target = longest_segment(self.bundle, self.voice, self.options, anchored=anchored)
        # If nothing can be said, the error about the whole text is the better one.
        target = max(target, LEAST_SEGMENT_TOKENS)
        parts = segments(text, partial(self._count, target=target), target)
        return parts or [Segment(text, ends_paragraph=False)]

    def split_sentence(self, sentence: str) -> list[Segment]:
        """A sentence, with the white space after it, as segments; empty if there is nothing to say."""
        whole = one_segment(sentence)
        parts = [part for segment in whole for part in self.split(segment.text, more=True)]
        return [*parts[:-1], *(Segment(part.text, whole[0].ends_paragraph) for part in parts[-1:])]

    def read(self, segments: Iterable[Segment]) -> Iterator[PlannedSegment]:
        """The segments in turn, tokenised and checked. Without a voice, each continues the first ones.

        The first segment is the voice of the others. If it is short, such as a heading, the next ones are added to the
        voice until there is enough of it.

        Raises InputError for a segment that cannot be said or does not fit into the KV cache, and MissingExtraError if
        the extra `normalize` is missing.
        """
        transcript, taken, growing = "", 0, self.voice is None
        room = max(
            longest_segment(self.bundle, self.voice, self.options, anchored=True), LEAST_SEGMENT_TOKENS
        )
        for segment in segments:
            planned = self._read(segment, transcript)
            # `split` has left room for a voice that is as long as the longest segment.
            growing = growing and (not taken or taken + planned.target_tokens <= room)
            if growing:
                planned = replace(planned, anchors=True)
                transcript += planned.transcript
                taken += planned.target_tokens
                growing = taken < least_anchor(self.bundle)
            yield planned

    def limit(self, segment: PlannedSegment, voice: Voice | UnencodedVoice | None) -> int:
        """Largest number of patches of a segment in a voice. Raises InputError if not even the shortest speech fits."""
        taken = positions(len(segment.tokens), voice)
        return patch_limit(taken, segment.target_tokens, self.options, self.bundle.manifest.sizes.kv_length)

    def encoded_voice(self, driver: Driver) -> Voice | None:
        """The voice that was given; `driver` encodes recordings. None if none was given."""
        return self.voice.encoded(driver) if isinstance(self.voice, UnencodedVoice) else self.voice

    def reporter(self) -> ProgressReporter:
        """A new progress reporter for this plan's segments; its time starts now."""
        texts = [segment.text for segment in self.segments]
        return ProgressReporter(self.progress, texts, self.bundle.architecture.patch_seconds)

    def _read(self, segment: Segment, anchored: str) -> PlannedSegment:
        """Tokenise and check a segment. anchored: transcript of the segments that it continues without a voice."""
        tokenizer = self.bundle.tokenizer
        # A segment that continues the first one continues its style, too.
        controls = self.voice is not None or not anchored
        text = controlled(segment.text, self.description) if controls else segment.text
        said = said_text(text, normalize=self.options.normalize)
        target = spelled(said, tokenizer)
        transcript = spelled_transcript(self.voice.transcript if self.voice else anchored, tokenizer)
        if unknown := tokenizer.unknown_characters(transcript + target):
            warnings.warn(f"this voice has no token for {unknown!r}, which it will not speak", stacklevel=4)
        planned = PlannedSegment(
            text=segment.text,
            transcript=continued_transcript(said, tokenizer),
            # The prompt's transcript is used as given, with or without a trailing space.
            tokens=tokenizer(transcript + target),
            transcript_tokens=tokenizer(transcript) if transcript else [],
            target_tokens=len(tokenizer(target)),
            letters=letters_in(self._said_alone(segment) if controls and self.description else target),
            ends_paragraph=segment.ends_paragraph,
        )
        self.limit(planned, self.voice)
        return planned

    def _said_alone(self, segment: Segment) -> str:
        """The segment as it is said, without the control before it, which is read, too, but not spoken."""
        return spelled(said_text(segment.text, normalize=self.options.normalize), self.bundle.tokenizer)

    def _count(self, text: str, target: int) -> int:
        """Number of tokens of a text; more than `target` also if it is expected to take more than `longest_seconds`."""
        try:
            said = spelled(text, self.bundle.tokenizer)
        except InputError:
            said = text
        tokens, profile = len(self.bundle.tokenizer(said)), self.bundle.manifest.speech
        if profile is None or self.options.segment_tokens is not None:
            return tokens
        share = profile.expected_seconds(letters_in(said)) / profile.longest_seconds
        return max(tokens, math.ceil(target * share))


def plan(bundle: Bundle, arguments: Arguments) -> Plan:
    """The plan of a call. It reads recordings, but runs no step model.

    Raises InputError, one line, for anything that cannot be spoken, MissingExtraError if the extra `normalize` is
    missing, and Cancelled if the call was cancelled before it began.
    """
    a, options, recordings = bundle.architecture, arguments.options, arguments.recordings
    cancel = arguments.cancel or CancelToken()
    if not arguments.keep_partial:
        # If many utterances share a token, those that have not begun do not begin.
        cancel.check()
    parallel = 1 if arguments.parallel_segments is None else arguments.parallel_segments
    unread = Plan(
        bundle=bundle,
        voice=recordings.read(a, trimmed=options.trim_silence_vad),
        description=checked_control(arguments.control, a, recordings),
        options=options,
        randomness=randomness(arguments.seed, arguments.rng),
        progress=arguments.progress,
        cancel=cancel,
        keep_partial=bool(arguments.keep_partial),
        parallel_segments=whole_number(parallel, "parallel_segments", 1),
        saved_segments=arguments.saved_segments,
    )
    if arguments.text is None:
        return unread
    return replace(unread, segments=tuple(unread.read(unread.split(arguments.text))))


def checked_control(control: str | None, a: Architecture, recordings: Recordings) -> str:
    """The description that a control is; empty for none.

    Raises InputError on a generation before VoxCPM2, together with a prompt, and for a parenthesis without a partner.
    """
    description = described(control)
    if not description:
        return ""
    require_references(
        a, "control (voice design, style control)", "leave it out, or give a prompt to continue"
    )
    if recordings.continues:
        raise InputError(
            "control cannot be used together with a prompt to continue, which brings its own style; "
            "give one of them, or the audio as a reference"
        )
    return description
