"""The plan of one call: everything is read, checked, tokenised and cut into segments here, without a step model.

arguments ─► options, randomness, voice, control ─► text ─► segments ─► tokens ─► room in the KV cache

A text of any length is read while it is spoken: the plan itself reads its beginning, so that the first audio of a book
does not wait for its last page, and what is wrong with a text of ordinary length is found before anything is spoken.
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import overload

import numpy as np

from voxcpm_constants.bounds import MAX_READ_AT_ONCE
from voxcpm_constants.errors import InputError, system_errors_as
from voxcpm_runtime.argument_types import instance
from voxcpm_runtime.audio.pcm import Audio
from voxcpm_runtime.bundle.opening import Bundle
from voxcpm_runtime.model.driver import Driver
from voxcpm_runtime.options import GenerationOptions
from voxcpm_runtime.speech.arguments import Arguments
from voxcpm_runtime.speech.cancellation import Cancelled, CancelToken
from voxcpm_runtime.speech.expected_length import letters_in
from voxcpm_runtime.speech.kv_room import longest_segment, min_anchor, min_patches, patch_limit, positions
from voxcpm_runtime.speech.planned_segment import PlannedSegment
from voxcpm_runtime.speech.progress import ProgressCallback, ProgressReporter
from voxcpm_runtime.speech.randomness import Randomness, randomness
from voxcpm_runtime.speech.saved_segments import SavedSegments
from voxcpm_runtime.text.input_text import checked_control, controlled
from voxcpm_runtime.text.normalization import (
    check_sayable,
    continued_transcript,
    listed,
    said_text,
    spelled,
    spelled_transcript,
)
from voxcpm_runtime.text.segments import Segment, each_segment, has_words, one_segment
from voxcpm_runtime.voices.recordings import UnencodedVoice
from voxcpm_runtime.voices.voice import Voice

MIN_SEGMENT_TOKENS = 8
"""Text tokens that a segment may always have, even if the KV cache seems too short for their speech."""
_NOT_CALLERS = ("voxcpm_runtime", "voxcpm_constants", "contextlib")
_CHARACTERS_PER_TOKEN = 16
"""A text with more characters for each token of the longest segment is long, without counting its tokens."""


class PlannedSegments(Sequence[PlannedSegment]):
    """The segments of a plan's text, read from it in turn: an iterator reads each when it is taken, and keeps none.

    A length, or an index beyond the beginning, reads the whole text, once.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def __iter__(self) -> Iterator[PlannedSegment]:
        """The segments in turn. Errors: see `Plan.read`; and Cancelled, if the plan is."""
        return self._plan.from_the_beginning()

    def __len__(self) -> int:
        """Number of segments."""
        return len(self._plan.all_segments)

    def __bool__(self) -> bool:
        """Whether there is a text."""
        return bool(self._plan.opening)

    @overload
    def __getitem__(self, index: int) -> PlannedSegment: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[PlannedSegment, ...]: ...

    def __getitem__(self, index: int | slice) -> PlannedSegment | tuple[PlannedSegment, ...]:
        """One segment, or some of them."""
        opening = self._plan.opening
        if isinstance(index, int) and 0 <= index < len(opening):
            return opening[index]
        return self._plan.all_segments[index]


def _calling_line() -> tuple[str, int]:
    """File and line of the innermost caller outside this package; contextlib's frames are those of decorators."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals["__name__"].partition(".")[0] in _NOT_CALLERS:
        frame = frame.f_back
    return (frame.f_code.co_filename, frame.f_lineno) if frame else (__file__, 1)


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
    saved_segments: SavedSegments | None
    text: str | None = None
    """The whole text; None if it comes later, as in a session."""
    opening: tuple[PlannedSegment, ...] = ()
    """The first segments: all of a text of ordinary length, the very first of a longer one."""
    caller: tuple[str, int] = field(default_factory=_calling_line, compare=False, repr=False)
    """File and line of the call from outside this package, to which warnings point, whichever thread speaks."""

    def warn(self, message: str | Warning, category: type[Warning]) -> None:
        """Warn at the line of the caller."""
        warnings.warn_explicit(message, category, *self.caller)

    @property
    def segments(self) -> Sequence[PlannedSegment]:
        """The segments of the whole text, read as they are taken; none if the text comes later, as in a session."""
        if self.text is None or (self.opening and self.read_to_the_end):
            return self.opening
        # Not kept: they refer to the plan, which would then be freed late, with the lock of its saved segments.
        return PlannedSegments(self)

    @property
    def max_patches(self) -> int | None:
        """Largest number of patches of the whole speech; None for any, as in a session, whose text has no end."""
        return None if self.text is None else self.options.max_len

    @property
    def read_to_the_end(self) -> bool:
        """Whether `opening` is all segments."""
        return not self.opening or self.opening[-1].followed is False

    @property
    def all_segments(self) -> tuple[PlannedSegment, ...]:
        """All segments of the text, which reads it to its end, once. Errors: see `read`; and Cancelled."""
        # Before Python 3.12 a `cached_property` of two plans has one lock: they would be read one after the other.
        if "_all_segments" not in self.__dict__:
            every = self.opening if self.read_to_the_end else tuple(self.from_the_beginning())
            self.__dict__["_all_segments"] = every
        return self.__dict__["_all_segments"]

    def split(self, text: str, *, more: bool = False, cancel: CancelToken | None = None) -> Iterator[Segment]:
        """The text as one segment if it is short, otherwise in segments whose speech fits into the KV cache.

        Without a voice, room is left for the first segment, which the others continue. more: whether there are other
        segments in any case. cancel: ends it, by default the plan's. Raises Cancelled.
        """
        anchored = self.voice is None
        if _fits_alone(self, text, anchored=more and anchored):
            yield Segment(text, ends_paragraph=False)
            return
        target = longest_segment(self.bundle, self.voice, self.options, anchored=anchored)
        # If nothing can be said, the error about the whole text is the better one.
        target = max(target, MIN_SEGMENT_TOKENS)
        count, check = partial(_count, target=target, plan=self), (cancel or self.cancel).check
        parts = each_segment(text, count, target, check)
        yield next(parts, Segment(text, ends_paragraph=False))
        yield from parts

    def split_sentence(self, sentence: str) -> list[Segment]:
        """A sentence, with the white space after it, as segments; empty if there is nothing to say."""
        whole = one_segment(sentence)
        parts = [part for segment in whole for part in self.split(segment.text, more=True)]
        return [*parts[:-1], *(Segment(part.text, whole[0].ends_paragraph) for part in parts[-1:])]

    def read(self, segments: Iterable[Segment | None]) -> Iterator[PlannedSegment | None]:
        """The segments in turn, tokenised and checked. Without a voice, each continues the first ones. None stays None.

        The first segment is the voice of the others. If it is short, such as a heading, the next ones are added to the
        voice until there is enough of it.

        Raises InputError for a segment that cannot be said or does not fit into the KV cache, and MissingExtraError if
        the extra `normalize` is missing for a Chinese text.
        """
        reader = _Reader(self)
        kind = "a segment of a text, or None"
        return (
            None if segment is None else reader.read(instance(segment, Segment, "a segment", kind))
            for segment in segments
        )

    def limit(self, segment: PlannedSegment, voice: Voice | UnencodedVoice | None, continued: int = 0) -> int:
        """Largest number of patches of a segment in a voice. Raises InputError if not even the shortest speech fits.

        continued: patches of a voice that is still to be spoken.
        """
        taken = positions(len(segment.tokens), voice) + continued
        return patch_limit(taken, segment.target_tokens, self.options, self.bundle.manifest.sizes.kv_length)

    @system_errors_as(InputError)
    def encoded_voice(self, driver: Driver) -> Voice | None:
        """The voice that was given; `driver` encodes recordings. None if none was given.

        Raises InputError if the system refuses something, such as memory.
        """
        return self.voice.encoded(driver) if isinstance(self.voice, UnencodedVoice) else self.voice

    @property
    def pause(self) -> Audio:
        """The silence between two paragraphs, (samples,)."""
        rate = self.bundle.architecture.output_sample_rate
        return np.zeros(round(self.options.paragraph_pause * rate), np.float32)

    def reporter(self) -> ProgressReporter:
        """A new progress reporter for this plan's segments; its time starts now."""
        characters, segments = len(self.text or ""), None
        if self.read_to_the_end:
            characters, segments = 0, len(self.opening)
            for segment in self.opening:
                characters += len(segment.text)
        return ProgressReporter(
            self.progress,
            characters=characters,
            segments=segments,
            patch_seconds=self.bundle.architecture.patch_seconds,
        )

    def from_the_beginning(self, cancel: CancelToken | None = None) -> Iterator[PlannedSegment]:
        """All segments of the text in turn. Before each that was not read yet, `cancel` ends it, by default the plan's.

        Errors: see `read`; and Cancelled.
        """
        if self.text is None or (self.opening and self.read_to_the_end):
            yield from self.opening
            return
        reader, known = _Reader(self), iter(self.opening)
        segments = self.split(self.text, cancel=cancel)
        segment = next(segments, None)
        while segment is not None:
            planned = next(known, None)
            if planned is None:
                (cancel or self.cancel).check()
            # Looked for before this one is spoken: the edge of its speech depends on whether there is another.
            following = next(segments, None)
            yield replace(reader.read(segment, planned), followed=following is not None)
            segment = following

    def read_segment(self, segment: Segment, anchored: str, continued: int) -> PlannedSegment:
        """Tokenise and check a segment.

        anchored: transcript of the segments that it continues without a voice. continued: their fewest patches.
        """
        tokenizer = self.bundle.tokenizer
        # A segment that continues the first one continues its style, too.
        has_control = bool(self.description) and (self.voice is not None or not anchored)
        said = self._said(controlled(segment.text, self.description) if has_control else segment.text)
        target = spelled(said, tokenizer)
        transcript = self.voice.transcript if self.voice else anchored
        transcript = spelled_transcript(transcript, tokenizer) if transcript else ""
        if unknown := tokenizer.unknown_characters(transcript + target):
            self.warn(f"this voice has no token for {listed(unknown)}, which it will not speak", UserWarning)
        # The prompt's transcript is used as given, with or without a trailing space.
        tokens = tokenizer(transcript + target)
        # As it is said without the control before it, which is read, too, but not spoken.
        spoken = spelled(self._said(segment.text), tokenizer) if has_control else target
        planned = PlannedSegment(
            text=segment.text,
            transcript=continued_transcript(said, tokenizer),
            tokens=tokens,
            transcript_tokens=tokenizer(transcript) if transcript else [],
            target_tokens=len(tokenizer(target) if transcript else tokens),
            letters=letters_in(spoken),
            ends_paragraph=segment.ends_paragraph,
        )
        self.limit(planned, self.voice, continued)
        return planned

    def _said(self, text: str) -> str:
        return said_text(
            text, normalize=self.options.normalize, letters_only=self.bundle.tokenizer.has_letters_only
        )


class _Reader:
    """Reads a plan's segments in turn, with what the first ones mean for the later ones."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._transcript = ""
        self._taken = 0
        self._continued = 0
        self._minimum = min_patches(plan.options)
        self._growing = plan.voice is None
        longest = longest_segment(plan.bundle, plan.voice, plan.options, anchored=True)
        self._room = max(longest, MIN_SEGMENT_TOKENS)

    def read(self, segment: Segment, known: PlannedSegment | None = None) -> PlannedSegment:
        """The segment, tokenised and checked. known: this, if it was read before. Errors: `Plan.read`."""
        # The speech before this segment and its own have at most `max_len` patches in all.
        maximum = self._plan.max_patches
        continued = self._continued if maximum is None else min(self._continued, maximum - self._minimum)
        planned = known or self._plan.read_segment(segment, self._transcript, continued)
        # `split` has left room for a voice that is as long as the longest segment.
        fits = not self._taken or self._taken + planned.target_tokens <= self._room
        self._growing = self._growing and fits
        if self._growing:
            planned = replace(planned, anchors=True)
            self._transcript += planned.transcript
            self._taken += planned.target_tokens
            self._continued += self._minimum
            self._growing = self._taken < min_anchor(self._plan.bundle)
        return planned


def _fits_alone(plan: Plan, text: str, *, anchored: bool = False) -> bool:
    """Whether the text is short enough for one segment. anchored: see `longest_segment`."""
    longest = longest_segment(plan.bundle, plan.voice, plan.options, anchored=anchored)
    maximum = max(longest, MIN_SEGMENT_TOKENS) * _CHARACTERS_PER_TOKEN
    return len(text) <= maximum and _count(text, longest, plan) <= longest


def _count(text: str, target: int, plan: Plan) -> int:
    """Number of tokens of a text; more than `target` also if it is expected to take more than `longest_seconds`."""
    try:
        said = spelled(text, plan.bundle.tokenizer)
    except InputError:
        said = text
    tokens, profile = len(plan.bundle.tokenizer(said)), plan.bundle.manifest.speech
    if profile is None or plan.options.segment_tokens is not None:
        return tokens
    share = profile.expected_seconds(letters_in(said)) / profile.longest_seconds
    return max(tokens, math.ceil(target * share))


def plan(bundle: Bundle, arguments: Arguments) -> Plan:
    """The plan of a call. It reads recordings, but runs no step model.

    A text of up to MAX_READ_AT_ONCE characters is read and checked as a whole. Of a longer one only the first segment
    is, and that there is no letter in it which the voice cannot say; the rest is read when its turn comes.

    Raises InputError, one line, for anything that cannot be spoken, MissingExtraError as `Plan.read` does, and
    Cancelled if the call was cancelled before it began.
    """
    a, options, recordings = bundle.architecture, arguments.options, arguments.recordings
    cancel = arguments.cancel or CancelToken()
    if not arguments.keep_partial:
        # If many utterances share a token, those that have not begun do not begin.
        cancel.check()
    description = ""
    if arguments.control:
        description = checked_control(arguments.control, a, continues=recordings.continues)
    unread = Plan(
        bundle=bundle,
        voice=recordings.read(a, trimmed=options.trim_silence_vad),
        description=description,
        options=options,
        randomness=randomness(arguments.seed, arguments.rng),
        progress=arguments.progress,
        cancel=cancel,
        keep_partial=arguments.keep_partial,
        saved_segments=arguments.saved_segments,
        text=arguments.text,
    )
    text = arguments.text
    if text is None:
        return unread
    if len(text) > MAX_READ_AT_ONCE and not has_words(text):
        raise InputError(
            f"the text has {len(text)} characters, and no letter or digit among them; expected something to say"
        )
    if len(text) > MAX_READ_AT_ONCE and not options.normalize:
        check_sayable(text, bundle.tokenizer)
    opening: tuple[PlannedSegment, ...]
    try:
        cancel.check()
        if _fits_alone(unread, text):
            only = unread.read_segment(Segment(text, ends_paragraph=False), "", 0)
            opening = (replace(only, anchors=unread.voice is None, followed=False),)
        elif len(text) <= MAX_READ_AT_ONCE:
            opening = tuple(unread.from_the_beginning())
        else:
            opening = (next(unread.from_the_beginning()),)
    except Cancelled:
        if not arguments.keep_partial:
            raise
        # Who speaks it sees that it was cancelled, and has nothing to give back.
        opening = ()
    return replace(unread, opening=opening)
