"""One segment in one voice: the sequence that the language models are prefilled with, and how much may follow it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from voxcpm_runtime.bundle.opening import Bundle
from voxcpm_runtime.model.sequence import Sequence, build_lead, build_sequence
from voxcpm_runtime.options import GenerationOptions
from voxcpm_runtime.speech.expected_length import ExpectedLength, expected_length, pace, upstream_length
from voxcpm_runtime.speech.kv_room import min_anchor, patch_bound, reference_positions
from voxcpm_runtime.speech.plan import Plan
from voxcpm_runtime.speech.planned_segment import PlannedSegment
from voxcpm_runtime.text.normalization import spelled_transcript
from voxcpm_runtime.voices.voice import Voice

_UPSTREAM_RATIO = GenerationOptions.retry_badcase_ratio_threshold


@dataclass(frozen=True)
class Utterance:
    """What to prefill, and how many patches may follow; make one with `utterance`."""

    index: int
    """Index of the segment in the speech, from 0."""
    segment: PlannedSegment
    sequence: Sequence
    shared: int
    """Number of positions at the start that are the voice's own."""
    limit: int
    """Largest number of patches; smaller than upstream's if the KV cache is too short, more would be hopeless, or
    `max_len` leaves less."""
    limited_by_cache: bool
    """Whether the KV cache makes `limit` smaller."""
    length: ExpectedLength
    """The length that it should have."""


def utterance(
    plan: Plan,
    index: int,
    segment: PlannedSegment,
    voice: Voice | None,
    *,
    prompt_letters: int = 0,
    left: int | None = None,
) -> Utterance:
    """The segment of that index in a voice. Raises InputError if the voice leaves too little room for it.

    prompt_letters: letters that are spoken in the voice's prompt; 0 if its pace says nothing. left: patches that the
    speech may still have; None for any number.
    """
    a = plan.bundle.architecture
    sequence = build_sequence(
        segment.tokens,
        (a.patch_size, a.feat_dim),
        prompt=voice.prompt if voice else None,
        reference=voice.reference if voice else None,
    )
    fitting = plan.limit(segment, voice)
    length = _length(plan, segment, voice, sequence, prompt_letters)
    # A maximum that the caller gives for one segment is no guess, and without a judgement nothing is hopeless.
    of_many = index > 0 or segment.followed is True
    guessed = plan.options.max_len is None or of_many
    maximum = length.maximum if plan.options.retry_badcase and guessed else math.inf
    room = math.inf if left is None else left
    return Utterance(
        index=index,
        segment=segment,
        sequence=sequence,
        shared=0 if voice is None else _common(segment) + reference_positions(voice),
        limit=int(min(fitting, maximum, room)),
        limited_by_cache=fitting <= room
        and fitting < min(patch_bound(segment.target_tokens, plan.options), maximum),
        length=length,
    )


def _length(
    plan: Plan, segment: PlannedSegment, voice: Voice | None, sequence: Sequence, prompt_letters: int
) -> ExpectedLength:
    a, options, profile = plan.bundle.architecture, plan.options, plan.bundle.manifest.speech
    if profile is None or options.retry_badcase_ratio_threshold != _UPSTREAM_RATIO:
        # Upstream's rule differs by generation in whether the decoder's context counts as speech.
        context = len(sequence.decoder_context(a.traits.decoder_context_patches))
        heard = context if a.traits.context_counts_as_speech else 0
        ratio = options.retry_badcase_ratio_threshold
        return upstream_length(segment.target_tokens, a.patch_seconds, ratio, heard, min_len=options.min_len)
    spoken = 1.0
    # A word or two may be said at any pace, whatever follows.
    if voice is not None and len(segment.transcript_tokens) >= min_anchor(plan.bundle):
        spoken = pace(profile, prompt_letters, voice.prompt_patches * a.patch_seconds)
    return expected_length(profile, segment.letters, a.patch_seconds, pace=spoken, min_len=options.min_len)


def voice_lead(bundle: Bundle, voice: Voice) -> Sequence:
    """The positions of a voice itself, before any text to speak; there may be none."""
    a = bundle.architecture
    transcript = spelled_transcript(voice.transcript, bundle.tokenizer)
    tokens = bundle.tokenizer(transcript) if transcript else []
    return build_lead(tokens, (a.patch_size, a.feat_dim), reference=voice.reference)


def _common(segment: PlannedSegment) -> int:
    """Number of first tokens that are equal for the transcript alone and for transcript and text together."""
    pairs = zip(segment.tokens, segment.transcript_tokens, strict=False)
    shorter = min(len(segment.tokens), len(segment.transcript_tokens))
    return next((index for index, (a, b) in enumerate(pairs) if a != b), shorter)
