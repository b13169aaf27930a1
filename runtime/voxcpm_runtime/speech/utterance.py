"""One segment in one voice, ready for prefill."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from voxcpm_runtime.model.sequence import Sequence, build_sequence
from voxcpm_runtime.speech.expected_length import ExpectedLength, length_of_segment
from voxcpm_runtime.speech.plan import Plan
from voxcpm_runtime.speech.results import PlannedSegment
from voxcpm_runtime.speech.room import reference_positions
from voxcpm_runtime.voices.voice import Voice


@dataclass(frozen=True)
class Utterance:
    """What to prefill, and how many patches may follow; create one with `utterance`."""

    index: int  # Index of the segment in the speech, from 0
    segment: PlannedSegment
    sequence: Sequence
    shared: int  # Number of leading positions that the voice's prefix covers
    limit: int
    """Maximum number of patches: upstream's, or less by the KV cache, `ExpectedLength.maximum` or `max_len`."""
    limited_by_cache: bool  # Whether the KV cache determines `limit`
    length: ExpectedLength

    @property
    def text(self) -> slice:
        """The positions of the text's tokens in the sequence."""
        end = int(np.flatnonzero(~self.sequence.is_audio)[-1])  # The token between text and audio
        return slice(end - self.segment.target_tokens, end)


def utterance(
    plan: Plan, index: int, segment: PlannedSegment, voice: Voice | None, *, prompt_letters: int = 0,
    left: int | None = None,
) -> Utterance:  # fmt: skip
    """The segment of that index in a voice. Raises InputError if the voice leaves too little room for it.

    prompt_letters: letters spoken in the voice's prompt; 0 if its pace is unknown. left: patches left of `max_len`;
    None for no limit.
    """
    a = plan.bundle.architecture
    sequence = build_sequence(
        segment.tokens, (a.patch_size, a.feat_dim),
        prompt=voice.prompt if voice else None, reference=voice.reference if voice else None,
    )  # fmt: skip
    fitting = plan.limit(segment, voice)
    length = length_of_segment(plan, segment, voice, sequence, prompt_letters)
    # The caller's `max_len` for a single segment is intended. Without `retry_badcase` lengths are not checked.
    is_multi_segment = index > 0 or segment.followed is True
    is_estimated = plan.options.max_len is None or is_multi_segment
    maximum = length.maximum if plan.options.retry_badcase and is_estimated else math.inf
    room = math.inf if left is None else left
    bound = min(plan.options.patch_bound(segment.target_tokens), maximum)
    shared = 0
    if voice is not None:
        # The common prefix of the tokens of the transcript, alone and with the text.
        pairs = zip(segment.tokens, segment.transcript_tokens, strict=False)
        shorter = min(len(segment.tokens), len(segment.transcript_tokens))
        shared = reference_positions(voice) + next((at for at, (a, b) in enumerate(pairs) if a != b), shorter)
    return Utterance(
        index=index,
        segment=segment,
        sequence=sequence,
        shared=shared,
        limit=int(min(fitting, maximum, room)),
        limited_by_cache=fitting <= room and fitting < bound,
        length=length,
    )
