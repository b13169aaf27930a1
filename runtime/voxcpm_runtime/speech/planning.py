"""Planning a call: the request checked, its text split into segments and tokenised, without a step model.

A long text is read lazily: only its beginning is read at once, so that the first audio of a book does not wait for its
last page. A shorter text is checked completely before anything is spoken.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from voxcpm_constants.bounds import MAX_READ_AT_ONCE
from voxcpm_constants.errors import InputError
from voxcpm_runtime.bundle.opening import Bundle
from voxcpm_runtime.speech.budget import MIN_SEGMENT_TOKENS, fits_alone, max_segment_tokens, min_anchor
from voxcpm_runtime.speech.plan import Plan
from voxcpm_runtime.speech.request import CancelToken, Request
from voxcpm_runtime.speech.results import PlannedSegment
from voxcpm_runtime.speech.seeds import first_seed
from voxcpm_runtime.speech.spine import tokenised
from voxcpm_runtime.speech.splitting import in_part, parts_of, split, split_marked_up, with_controls
from voxcpm_runtime.text.cleaning import Cleaner
from voxcpm_runtime.text.control import leading_control
from voxcpm_runtime.text.lexicon import pronunciation
from voxcpm_runtime.text.normalization import check_sayable
from voxcpm_runtime.text.segments import Segment, require_words
from voxcpm_runtime.voices.voice import Voice


def plan(bundle: Bundle, request: Request) -> Plan:
    """The plan of a call. Decodes recordings, but runs no step model.

    A text of up to MAX_READ_AT_ONCE characters is read and checked completely. Of a longer one only the first segment
    and the alphabet are checked; the rest is read while it is spoken.

    Raises a one-line InputError for anything that cannot be spoken, MissingExtraError as `read` does, and Cancelled if
    the call was cancelled before it began.
    """
    empty_plan = _without_segments(bundle, request)
    text, options = empty_plan.text, request.options
    if text is None:
        if options.markup:
            raise InputError("markup needs a whole text, not a session; use speak", argument="markup")
        return empty_plan
    said = text[empty_plan.text_start :]
    if options.markup:
        # Blanks keep the places in error messages.
        empty_plan = replace(empty_plan, parts=parts_of(" " * empty_plan.text_start + said, request))
    else:
        require_words(text)
        if fits_alone(empty_plan, said):
            only = tokenised(empty_plan, Segment(said, ends_paragraph=False, followed=False))
            return replace(empty_plan, opening=(replace(only, anchors=empty_plan.voice is None),))
    if len(text) <= MAX_READ_AT_ONCE:
        return replace(empty_plan, opening=tuple(read_text(empty_plan)))
    if options.strict and not options.normalize and not options.markup:
        check_sayable(empty_plan.pronounced(text), bundle.tokenizer)
    return replace(empty_plan, opening=(next(read_text(empty_plan)),))


def _without_segments(bundle: Bundle, request: Request) -> Plan:
    """The plan of everything except the text's segments."""
    a, options, text = bundle.architecture, request.options, request.text
    cancel = request.cancel or CancelToken()
    bundle.together(request.parallel_segments)
    if text is not None and options.clean:
        text = Cleaner(options.clean)(text)
    # Utterances that share a cancelled token do not start.
    cancel.check()
    control, text_start = leading_control(text) if text and a.traits.takes_reference else ("", 0)
    voice = request.voiced(bundle).read(a, trimmed=options.trim_silence_vad)
    own = voice.header.lexicon if isinstance(voice, Voice) else {}
    lexicon = {**bundle.lexicon, **own, **request.lexicon}
    empty_plan = Plan(
        bundle=bundle,
        request=request,
        options=options,
        voice=voice,
        seed=first_seed(request.seed, request.rng),
        cancel=cancel,
        lexicon=lexicon,
        pronounced=pronunciation(tuple(lexicon.items())) if lexicon else str,
        read=read_text,
        text=text,
        text_start=text_start,
    )
    return with_controls(empty_plan, request.control, control) if control or request.control else empty_plan


def read_text(plan: Plan) -> Iterator[PlannedSegment]:
    """Yield all segments of the text in order. Errors: see `read`; and Cancelled."""
    for planned in read(plan, _followed_segments(plan)):
        if planned is not None:
            yield planned


def _followed_segments(plan: Plan) -> Iterator[Segment]:
    """Yield the text in segments, each with `followed` set, on which its last samples depend."""
    plan.cancel.check()
    segments = split_marked_up(plan) if plan.parts else split(plan, (plan.text or "")[plan.text_start :])
    segment = next(segments)
    for following in segments:
        yield segment._replace(followed=True)
        plan.cancel.check()
        segment = following
    yield segment._replace(followed=False)


def read(plan: Plan, segments: Iterable[Segment | None]) -> Iterator[PlannedSegment | None]:
    """Yield the segments in order, tokenised and checked; None is passed through.

    Without a voice, the first segment becomes the voice of the others. If it is short, such as a heading, the next
    ones are added until the voice is long enough.

    Raises InputError for a segment that cannot be spoken or does not fit in the KV cache, and MissingExtraError if
    the extra `normalize` is missing for a Chinese text.
    """
    transcript, anchor_tokens, continued = "", 0, 0
    min_patches, growing = plan.options.min_patches, plan.voice is None
    # `split` left room for a voice as long as the longest segment.
    max_tokens = max(max_segment_tokens(plan, anchored=True), MIN_SEGMENT_TOKENS)
    for segment in segments:
        if segment is None:
            yield None
            continue
        # Earlier speech and this segment have at most `max_len` patches together; in a session there is no limit.
        if plan.text is not None and plan.options.max_len is not None:
            continued = min(continued, plan.options.max_len - min_patches)
        if segment.control:
            plan = with_controls(plan, segment.control)
        of_part = plan if segment.part is None else in_part(plan, segment.part)
        if segment.part is not None and segment.part.voice is not None:
            yield tokenised(of_part, segment)
            continue
        planned = tokenised(of_part, segment, transcript, continued)
        growing = growing and (not anchor_tokens or anchor_tokens + planned.target_tokens <= max_tokens)
        if growing:
            planned = replace(planned, anchors=True)
            transcript += planned.transcript
            anchor_tokens += planned.target_tokens
            continued += min_patches
            growing = anchor_tokens < min_anchor(plan.bundle)
        yield planned
