"""Splitting the text of a plan into segments, each spoken in one go."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from voxcpm_constants.errors import MissingExtraError
from voxcpm_runtime.speech.budget import MIN_SEGMENT_TOKENS, count_tokens, fits_alone, max_segment_tokens
from voxcpm_runtime.speech.plan import Plan
from voxcpm_runtime.speech.request import Request
from voxcpm_runtime.text.control import checked_control, leading_control
from voxcpm_runtime.text.lexicon import pronunciation
from voxcpm_runtime.text.segments import Segment, each_segment, one_segment

if TYPE_CHECKING:
    from voxcpm_runtime.speech.markup.parsing import Part


def split(plan: Plan, text: str, *, more: bool = False) -> Iterator[Segment]:
    """Yield the text as one segment if it is short, otherwise in segments whose speech fits in the KV cache.

    Without a voice, room is left for the first segment, which the others continue. more: whether the speech has
    other segments in any case. Raises Cancelled.
    """
    anchored = plan.voice is None
    whole = Segment(text, ends_paragraph=False)
    if fits_alone(plan, text, anchored=more and anchored):
        yield whole
        return
    target = max(max_segment_tokens(plan, anchored=anchored), MIN_SEGMENT_TOKENS)
    parts = each_segment(text, partial(count_tokens, plan, target=target), target, plan.cancel.check)
    # If there is nothing to say, the error about the whole text is clearer.
    yield next(parts, whole)
    yield from parts


def split_sentence(plan: Plan, clean: Callable[[str], str], sentence: str) -> list[Segment]:
    """The segments of a sentence with trailing white space; empty if there is nothing to say. clean: reads it."""
    whole = one_segment(clean(sentence))
    if not whole or not count_tokens(plan, whole[0].text, 1):
        return []
    parts = [*split(plan, whole[0].text, more=True)]
    return [*parts[:-1], parts[-1]._replace(ends_paragraph=whole[0].ends_paragraph)]


def split_first_sentence(plan: Plan, clean: Callable[[str], str], sentence: str) -> list[Segment]:
    """`split_sentence` for the beginning of a session's text, which may be a control (VoxCPM2). Raises InputError."""
    control, start = leading_control(sentence)
    parts = split_sentence(with_controls(plan, control), clean, sentence[start:])
    return [*(part._replace(control=control) for part in parts[:1]), *parts[1:]]


def split_marked_up(plan: Plan) -> Iterator[Segment]:
    """Yield the segments of a text with markup, which knows its parts. Raises Cancelled."""
    for part in plan.parts:
        end = 0
        for segment in split(in_part(plan, part), part.said, more=len(plan.parts) > 1):
            start = part.said.index(segment.text, end)
            end = start + len(segment.text)
            yield segment._replace(part=part, place=(start, end))


def parts_of(text: str, request: Request) -> tuple[Part, ...]:
    """The parts of a text with markup. Raises InputError, with the place, for what is not markup."""
    try:
        from voxcpm_runtime.speech.markup.parsing import spoken_parts, stored_voice
    except ImportError as error:
        raise MissingExtraError(f"markup needs {error.name}: reinstall voxcpm-coreml") from None
    speed = request.options.speed
    pause = request.options.paragraph_pause / speed
    return spoken_parts(text, pause, request.find_voice or stored_voice, speed)


def in_part(plan: Plan, part: Part) -> Plan:
    """The plan of a part of a text with markup, in its voice and at its speed."""
    options = replace(plan.options, speed=plan.options.speed * part.rate)
    if part.voice is None:
        return replace(plan, options=options)
    part.voice.check(plan.bundle.architecture)
    lexicon = {**plan.bundle.lexicon, **part.voice.header.lexicon, **plan.request.lexicon}
    said = pronunciation(tuple(lexicon.items()))
    return replace(plan, options=options, voice=part.voice, description="", lexicon=lexicon, pronounced=said)


def with_controls(plan: Plan, *controls: str | None) -> Plan:
    """The plan with these controls, in addition to its own. Raises the errors of `checked_control`."""
    a, continues = plan.bundle.architecture, plan.request.recordings.continues
    given = [checked_control(control, a, continues=continues) for control in controls if control]
    return replace(plan, description=", ".join(filter(None, [plan.description, *given])))
