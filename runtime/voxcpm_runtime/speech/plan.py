"""The plan of one call: arguments checked, text split into segments and tokenised, without a step model.

arguments ─► options, seed, voice, control ─► text ─► segments ─► tokens ─► room in the KV cache

A long text is read lazily: the plan reads only its beginning, so that the first audio of a book does not wait for its
last page. A shorter text is checked completely before anything is spoken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np

from voxcpm_constants.bounds import MAX_READ_AT_ONCE
from voxcpm_constants.errors import InputError, system_errors_as
from voxcpm_runtime.bundle.opening import Bundle
from voxcpm_runtime.model.driver import Driver
from voxcpm_runtime.model.flow_matching import NoiseSource
from voxcpm_runtime.options import SEGMENT_TOKENS, GenerationOptions
from voxcpm_runtime.speech.arguments import Arguments, CancelToken, first_seed, parts_of
from voxcpm_runtime.speech.results import PlannedSegment
from voxcpm_runtime.speech.room import (
    CHARACTERS_PER_TOKEN,
    MIN_SEGMENT_TOKENS,
    SPARE_PATCHES,
    AnyVoice,
    count_letters,
    min_anchor,
    positions,
    seconds_per_token,
)
from voxcpm_runtime.text.control import checked_control, leading_control, with_control
from voxcpm_runtime.text.lexicon import Lexicon, pronunciation
from voxcpm_runtime.text.normalization import (
    check_sayable,
    continued_transcript,
    listed,
    said_text,
    spelled,
    spelled_and_foreign,
    spelled_transcript,
    warn_of_replaced,
)
from voxcpm_runtime.text.segments import Segment, each_segment, has_blank_lines, one_segment, require_words
from voxcpm_runtime.voices.recordings import UnencodedVoice
from voxcpm_runtime.voices.voice import Voice

if TYPE_CHECKING:
    from voxcpm_runtime.markup.parsing import Part


@dataclass(frozen=True)
class Plan:
    """What to speak, and how; create one with `VoxCPM.plan`."""

    bundle: Bundle
    arguments: Arguments  # The arguments of the call; the text is None if it arrives later, as in a session
    options: GenerationOptions  # Those of the arguments
    voice: AnyVoice | None  # The caller's voice; None to continue the voice of the first segments
    description: str  # The control, without its parentheses; empty if there is none
    seed: int | None
    """The seed of the first attempt at the first segment; None if the caller passed an rng."""
    cancel: CancelToken
    lexicon: (
        Lexicon  # What is said differently than it is written: the call's entries, the voice's, the bundle's
    )
    text_start: int = 0  # Index in the arguments' text after the control that it begins with
    parts: tuple[Part, ...] = ()  # Those of a text with markup
    opening: tuple[PlannedSegment, ...] = ()
    """All segments, or only the first one of a long text."""

    @property
    def segments(self) -> tuple[PlannedSegment, ...]:
        """The segments of the whole text, which is read to its end. Errors: see `read`; and Cancelled."""
        return self.opening if self.is_read else self._all_segments

    @cached_property
    def _all_segments(self) -> tuple[PlannedSegment, ...]:
        return tuple(self.read_text())

    def each_segment(self) -> Iterable[PlannedSegment]:
        """The segments of the whole text; a long one is read lazily. Errors: see `segments`."""
        return self.opening if self.is_read else self.read_text()

    @property
    def is_read(self) -> bool:
        """Whether `opening` has all segments."""
        return self.arguments.text is None or (bool(self.opening) and self.opening[-1].followed is False)

    @property
    def follows_text(self) -> bool:
        """Whether the alignment heads are followed, so that every word is said once."""
        return self.options.every_word and bool(self.bundle.manifest.sizes.alignment)

    @property
    def max_patches(self) -> int | None:
        """Maximum number of patches in total; None for no limit, as in a session."""
        return None if self.arguments.text is None else self.options.max_len

    def pause_before(self, segment: PlannedSegment) -> float:
        """Seconds of silence before a segment: that of its markup, otherwise the one between paragraphs."""
        paragraph_pause = self.options.paragraph_pause / self.options.speed
        return paragraph_pause if segment.before is None else segment.before

    def of_part(self, part: Part | None) -> Plan:
        """The plan of a part of the text, in its voice and at its speed."""
        if part is None:
            return self
        options = replace(self.options, speed=self.options.speed * part.rate)
        if part.voice is None:
            return replace(self, options=options)
        part.voice.check(self.bundle.architecture)
        lexicon = {**self.bundle.lexicon, **part.voice.header.lexicon, **self.arguments.lexicon}
        return replace(self, options=options, voice=part.voice, description="", lexicon=lexicon)

    def seed_of(self, segment: int, attempt: int) -> int | None:
        """The seed of an attempt at a segment, both counted from 0; None if the caller passed an rng.

        A retry adds 1; seeds of later segments are derived from the first.
        """
        if self.seed is None:
            return None
        if segment == 0:
            return self.seed + attempt
        return int(np.random.SeedSequence([self.seed, segment]).generate_state(1)[0]) + attempt

    def noise(self, segment: int, attempt: int, repair: int = 0) -> NoiseSource:
        """The source of noise for an attempt at a segment, and for a repair of it, all counted from 0."""
        if self.arguments.rng is not None:
            return self.arguments.rng
        seed = self.seed_of(segment, attempt)
        return np.random.default_rng([seed, segment, repair] if seed is not None and repair else seed)

    def limit(self, segment: PlannedSegment, voice: AnyVoice | None, continued: int = 0) -> int:
        """Maximum number of patches of a segment in a voice. Raises InputError if not even the shortest speech fits.

        continued: patches to reserve for a voice that is not spoken yet.
        """
        used = positions(len(segment.tokens), voice) + continued
        min_patches, capacity = self.options.min_patches, self.bundle.manifest.sizes.kv_length
        if used + min_patches > capacity:
            raise InputError(
                f"text, prompt and earlier segments take {used} positions and the speech at least {min_patches}: "
                f"{used + min_patches} needed, but the KV cache has {capacity}; shorten the text or the prompt, "
                "lower min_len, or convert with a larger --max-length"
            )
        return min(self.options.patch_bound(segment.target_tokens), capacity - used)

    @system_errors_as(InputError)
    def encoded_voice(self, driver: Driver) -> Voice | None:
        """The caller's voice, with recordings encoded by `driver`; None without one.

        Raises InputError for a system error, such as too little memory.
        """
        return self.voice.encode(driver) if isinstance(self.voice, UnencodedVoice) else self.voice

    def max_segment_tokens(self, *, anchored: bool) -> int:
        """Maximum number of text tokens in a segment, by `segment_tokens` and by the speech that fits in the KV cache.

        anchored: leave room for an equally long segment that this one continues.
        """
        options, voice, manifest = self.options, self.voice, self.bundle.manifest
        by_pace = seconds_per_token(self.bundle) / self.bundle.architecture.patch_seconds
        transcript = len(self.bundle.tokenizer(voice.transcript)) if voice and voice.transcript else 0
        if self.description:
            transcript += len(self.bundle.tokenizer(with_control("", self.description)))
        room = manifest.sizes.kv_length - positions(transcript, voice) - SPARE_PATCHES
        fits = room / (1 + min(by_pace, options.retry_badcase_ratio_threshold))
        if options.max_len is not None:
            fits = max(fits, room - options.max_len)
        min_patches = options.min_patches * (2 if anchored else 1)
        fits = min(fits, room + SPARE_PATCHES - min(min_patches, options.max_len or min_patches))
        by_profile = manifest.speech.longest_tokens if manifest.speech else SEGMENT_TOKENS
        return max(0, min(int(fits / 2 if anchored else fits), options.segment_tokens or by_profile))

    def fits_alone(self, text: str, *, anchored: bool = False) -> bool:
        """Whether the text is a paragraph short enough for one segment. anchored: see `max_segment_tokens`."""
        max_tokens = self.max_segment_tokens(anchored=anchored)
        maximum = max(max_tokens, MIN_SEGMENT_TOKENS) * CHARACTERS_PER_TOKEN
        if len(text) > maximum or has_blank_lines(text):
            return False
        return self._count_tokens(text, max_tokens) <= max_tokens

    def split(self, text: str, *, more: bool = False) -> Iterator[Segment]:
        """Yield the text as one segment if it is short, otherwise in segments whose speech fits in the KV cache.

        Without a voice, room is left for the first segment, which the others continue. more: whether the speech has
        other segments in any case. Raises Cancelled.
        """
        anchored = self.voice is None
        whole = Segment(text, ends_paragraph=False)
        if self.fits_alone(text, anchored=more and anchored):
            yield whole
            return
        target = max(self.max_segment_tokens(anchored=anchored), MIN_SEGMENT_TOKENS)
        parts = each_segment(text, partial(self._count_tokens, target=target), target, self.cancel.check)
        # If there is nothing to say, the error about the whole text is clearer.
        yield next(parts, whole)
        yield from parts

    def split_sentence(self, sentence: str, clean: Callable[[str], str] = str) -> list[Segment]:
        """The segments of a sentence with trailing white space; empty if there is nothing to say. clean: reads it."""
        whole = one_segment(clean(sentence))
        if not whole or not self._count_tokens(whole[0].text, 1):
            return []
        parts = [*self.split(whole[0].text, more=True)]
        return [*parts[:-1], parts[-1]._replace(ends_paragraph=whole[0].ends_paragraph)]

    def split_first_sentence(self, sentence: str, clean: Callable[[str], str] = str) -> list[Segment]:
        """`split_sentence` for the beginning of a session's text, which may be a control. Raises InputError."""
        control, start = leading_control(sentence, self.bundle.architecture)
        parts = self.with_controls(control).split_sentence(sentence[start:], clean)
        return [*(part._replace(control=control) for part in parts[:1]), *parts[1:]]

    def with_controls(self, *controls: str | None) -> Plan:
        """The plan with these controls, in addition to its own. Raises the errors of `checked_control`."""
        a, continues = self.bundle.architecture, self.arguments.recordings.continues
        given = [checked_control(control, a, continues=continues) for control in controls if control]
        return replace(self, description=", ".join(filter(None, [self.description, *given])))

    def read(self, segments: Iterable[Segment | None]) -> Iterator[PlannedSegment | None]:
        """Yield the segments in order, tokenised and checked; None is passed through.

        Without a voice, the first segment becomes the voice of the others. If it is short, such as a heading, the next
        ones are added until the voice is long enough.

        Raises InputError for a segment that cannot be spoken or does not fit in the KV cache, and MissingExtraError if
        the extra `normalize` is missing for a Chinese text.
        """
        transcript, anchor_tokens, continued, controlled = "", 0, 0, self
        min_patches, growing = self.options.min_patches, self.voice is None
        # `split` left room for a voice as long as the longest segment.
        max_tokens = max(self.max_segment_tokens(anchored=True), MIN_SEGMENT_TOKENS)
        for segment in segments:
            if segment is None:
                yield None
                continue
            # Earlier speech and this segment have at most `max_len` patches together.
            if self.max_patches is not None:
                continued = min(continued, self.max_patches - min_patches)
            if segment.part is not None and segment.part.voice is not None:
                yield self.of_part(segment.part).read_segment(segment, "", 0)
                continue
            if segment.control:
                controlled = self.with_controls(segment.control)
            planned = controlled.of_part(segment.part).read_segment(segment, transcript, continued)
            growing = growing and (not anchor_tokens or anchor_tokens + planned.target_tokens <= max_tokens)
            if growing:
                planned = replace(planned, anchors=True)
                transcript += planned.transcript
                anchor_tokens += planned.target_tokens
                continued += min_patches
                growing = anchor_tokens < min_anchor(self.bundle)
            yield planned

    def read_text(self) -> Iterator[PlannedSegment]:
        """Yield all segments of the text in order. Errors: see `read`; and Cancelled."""
        for planned in self.read(self._parts()):
            if planned is not None:
                yield planned

    def _parts(self) -> Iterator[Segment]:
        """Yield the text in segments, each with `followed` set, on which its last samples depend."""
        self.cancel.check()
        parts = (
            self._marked_up() if self.parts else self.split((self.arguments.text or "")[self.text_start :])
        )
        segment = next(parts)
        for following in parts:
            yield segment._replace(followed=True)
            self.cancel.check()
            segment = following
        yield segment._replace(followed=False)

    def _marked_up(self) -> Iterator[Segment]:
        for part in self.parts:
            end = 0
            for segment in self.of_part(part).split(part.said, more=len(self.parts) > 1):
                start = part.said.index(segment.text, end)
                end = start + len(segment.text)
                yield segment._replace(part=part, place=(start, end))

    def read_segment(self, segment: Segment, anchored: str, continued: int) -> PlannedSegment:
        """Tokenise and check a segment.

        anchored: transcript of the segments that it continues if there is no voice. continued: their minimum patches.
        """
        tokenizer = self.bundle.tokenizer
        say = partial(said_text, normalize=self.options.normalize, letters_only=tokenizer.has_letters_only)
        # A segment that continues the first one also continues its style.
        has_control = bool(self.description) and (self.voice is not None or not anchored)
        text = self.pronounced(segment.text)
        said = say(with_control(text, self.description) if has_control else text)
        strict = self.options.strict
        target, foreign = spelled_and_foreign(said, tokenizer, strict=strict)
        transcript = self.voice.transcript if self.voice else anchored
        transcript = spelled_transcript(transcript, tokenizer, strict=strict) if transcript else ""
        unknown = tokenizer.unknown_characters(transcript + target)
        if unknown and strict:
            raise InputError(f"this voice has no token for {listed(unknown)}; remove them", argument="text")
        warn_of_replaced(foreign, unknown)
        # The prompt's transcript is used unchanged, with or without a trailing space.
        tokens = tokenizer(transcript + target)
        # The control is tokenised but not spoken.
        spoken = spelled(say(text), tokenizer) if has_control else target
        part: Part | None = segment.part
        planned = PlannedSegment(
            text=part.written(*segment.place) if part else segment.text,
            said=spoken,
            transcript=continued_transcript(said, tokenizer),
            tokens=tokens,
            transcript_tokens=tokenizer(transcript) if transcript else [],
            target_tokens=len(tokenizer(target) if transcript else tokens),
            letters=count_letters(spoken),
            ends_paragraph=segment.ends_paragraph,
            followed=segment.followed,
            speed=self.options.speed,
            voice=part.voice if part else None,
            before=part.pause if part and not segment.place[0] else None,
            after=part.after if part and segment.followed is False else 0.0,
            replaced=foreign + unknown,
        )
        self.limit(planned, self.voice, continued)
        return planned

    @cached_property
    def pronounced(self) -> Callable[[str], str]:
        """Says a text as the lexicon does."""
        return pronunciation(tuple(self.lexicon.items())) if self.lexicon else str

    def _count_tokens(self, text: str, target: int) -> int:
        """Number of tokens of a text; more than `target` also if it is expected to exceed `longest_seconds`."""
        tokenizer, profile = self.bundle.tokenizer, self.bundle.manifest.speech
        text = self.pronounced(text)
        try:
            said = spelled(text, tokenizer)
        except InputError:  # Nothing to say
            return 0
        tokens = len(tokenizer(said))
        if profile is None or self.options.segment_tokens is not None:
            return tokens
        share = profile.expected_seconds(count_letters(said)) / profile.longest_seconds
        return max(tokens, math.ceil(target * share))


def plan(bundle: Bundle, arguments: Arguments) -> Plan:
    """The plan of a call. Decodes recordings, but runs no step model.

    A text of up to MAX_READ_AT_ONCE characters is read and checked completely. Of a longer one only the first segment
    and the alphabet are checked; the rest is read while it is spoken.

    Raises a one-line InputError for anything that cannot be spoken, MissingExtraError as `Plan.read` does, and
    Cancelled if the call was cancelled before it began.
    """
    a, options, recordings = bundle.architecture, arguments.options, arguments.recordings
    arguments = arguments.cleaned()
    cancel, text = arguments.cancel or CancelToken(), arguments.text
    # Utterances that share a cancelled token do not start.
    cancel.check()
    control, text_start = leading_control(text or "", a)
    voice = recordings.read(a, trimmed=options.trim_silence_vad)
    own = voice.header.lexicon if isinstance(voice, Voice) else {}
    empty_plan = Plan(
        bundle=bundle,
        arguments=arguments,
        options=options,
        voice=voice,
        lexicon={**bundle.lexicon, **own, **arguments.lexicon},
        description="",
        text_start=text_start,
        seed=first_seed(arguments.seed, arguments.rng),
        cancel=cancel,
    ).with_controls(arguments.control, control)
    if text is None:
        if options.markup:
            raise InputError("markup needs a whole text, not a session; use speak", argument="markup")
        return empty_plan
    if not options.markup:
        require_words(text)
    if options.markup:
        # Blanks keep the places in error messages.
        marked_up = " " * text_start + text[text_start:]
        empty_plan = replace(empty_plan, parts=parts_of(marked_up, arguments))
    elif empty_plan.fits_alone(text[text_start:]):
        only = empty_plan.read_segment(
            Segment(text[text_start:], ends_paragraph=False, followed=False), "", 0
        )
        return replace(empty_plan, opening=(replace(only, anchors=empty_plan.voice is None),))
    if len(text) <= MAX_READ_AT_ONCE:
        return replace(empty_plan, opening=tuple(empty_plan.read_text()))
    if options.strict and not options.normalize and not options.markup:
        check_sayable(empty_plan.pronounced(text), bundle.tokenizer)
    return replace(empty_plan, opening=(next(empty_plan.read_text()),))
