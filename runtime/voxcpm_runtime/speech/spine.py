"""One segment from text to audio, in the order in which it happens. What else speech needs wraps these three steps.

    text ─► tokens ─► sequence in a voice ─► prefill ─► patches ─► audio
    `tokenised`       `prepared`             `prefilled`, `Take`

`planning` cuts a text into segments, `stream` speaks one after another, `attempts` judges, repairs and repeats a take,
and `gathering` saves a segment and tells the times of its words. The loop over the step models is `model.driver`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from collections.abc import Sequence as Items
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from voxcpm_constants.errors import InputError
from voxcpm_constants.step_models import AUDIO_VAE_DECODER
from voxcpm_runtime.audio.pcm import Audio, faded_in, faded_out
from voxcpm_runtime.audio.stretching import Stretching
from voxcpm_runtime.backends.step_function import Floats
from voxcpm_runtime.model.driver import Driver, Patch, Prefilled, Prefix
from voxcpm_runtime.model.flow_matching import NoiseSource
from voxcpm_runtime.model.sequence import Sequence, build_sequence
from voxcpm_runtime.speech.budget import count_letters, patch_limit, reference_positions
from voxcpm_runtime.speech.expected_length import ExpectedLength, length_of_segment
from voxcpm_runtime.speech.plan import Plan
from voxcpm_runtime.speech.request import CancelToken
from voxcpm_runtime.speech.results import PlannedSegment
from voxcpm_runtime.text.control import with_control
from voxcpm_runtime.text.normalization import (
    continued_transcript,
    listed,
    said_text,
    spelled,
    spelled_and_foreign,
    spelled_transcript,
    warn_of_replaced,
)
from voxcpm_runtime.text.segments import Segment
from voxcpm_runtime.voices.voice import Voice

if TYPE_CHECKING:
    from voxcpm_runtime.speech.markup.parsing import Part


def tokenised(plan: Plan, segment: Segment, anchored: str = "", continued: int = 0) -> PlannedSegment:
    """The segment as it is said, with its tokens. Raises InputError if it cannot be spoken or does not fit.

    anchored: transcript of the segments that it continues if there is no voice. continued: their minimum patches.
    """
    tokenizer, strict, voice = plan.bundle.tokenizer, plan.options.strict, plan.voice
    say = partial(said_text, normalize=plan.options.normalize, letters_only=tokenizer.has_letters_only)
    # A segment that continues the first one also continues its style.
    has_control = bool(plan.description) and (voice is not None or not anchored)
    text = plan.pronounced(segment.text)
    said = say(with_control(text, plan.description) if has_control else text)
    target, foreign = spelled_and_foreign(said, tokenizer, strict=strict)
    transcript = voice.transcript if voice else anchored
    transcript = spelled_transcript(transcript, tokenizer, strict=strict)
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
        speed=plan.options.speed,
        voice=part.voice if part else None,
        before=part.pause if part and not segment.place[0] else None,
        after=part.after if part and segment.followed is False else 0.0,
        replaced=foreign + unknown,
    )
    patch_limit(plan, planned, voice, continued)
    return planned


@dataclass(frozen=True)
class Utterance:
    """One segment in one voice: what to prefill, and how many patches may follow; create one with `prepared`."""

    index: int  # Index of the segment in the speech, from 0
    segment: PlannedSegment
    sequence: Sequence
    shared: int  # Number of leading positions that the voice's prefix covers
    limit: int
    """Maximum number of patches: upstream's, or less by the KV cache, `ExpectedLength.maximum` or `max_len`."""
    limited_by_cache: bool  # Whether the KV cache determines `limit`
    length: ExpectedLength

    def ends_with(self, patch: Patch) -> bool:
        """Whether a patch is the last one, by the stop head or by `limit`."""
        return patch.stops or patch.index + 1 == self.limit

    @property
    def text(self) -> slice:
        """The positions of the text's tokens in the sequence."""
        end = int(np.flatnonzero(~self.sequence.is_audio)[-1])  # The token between text and audio
        return slice(end - self.segment.target_tokens, end)


def prepared(
    plan: Plan, index: int, segment: PlannedSegment, voice: Voice | None, *, prompt_letters: int = 0,
    left: int | None = None,
) -> Utterance:  # fmt: skip
    """The segment of that index in a voice. Raises InputError if the voice leaves too little room for it.

    prompt_letters: letters spoken in the voice's prompt; 0 if its pace is unknown. left: patches left of `max_len`;
    None for no limit.
    """
    a, options = plan.bundle.architecture, plan.options
    sequence = build_sequence(
        segment.tokens, (a.patch_size, a.feat_dim),
        prompt=voice.prompt if voice else None, reference=voice.reference if voice else None,
    )  # fmt: skip
    fitting = patch_limit(plan, segment, voice)
    length = length_of_segment(plan, segment, voice, sequence, prompt_letters)
    # The caller's `max_len` for a single segment is intended. Without `retry_badcase` lengths are not checked.
    is_estimated = options.max_len is None or index > 0 or segment.followed is True
    maximum = length.maximum if options.retry_badcase and is_estimated else math.inf
    room = math.inf if left is None else left
    bound = min(options.patch_bound(segment.target_tokens), maximum)
    shared = 0
    if voice is not None:
        # The common prefix of the tokens of the transcript, alone and with the text.
        common = os.path.commonprefix([segment.tokens, segment.transcript_tokens])  # noqa: RUF071 - no paths
        shared = reference_positions(voice) + len(common)
    return Utterance(
        index=index,
        segment=segment,
        sequence=sequence,
        shared=shared,
        limit=int(min(fitting, maximum, room)),
        limited_by_cache=fitting <= room and fitting < bound,
        length=length,
    )


def prefilled(plan: Plan, driver: Driver, utterance: Utterance, prefix: Prefix | None) -> Prefilled:
    """The KV caches after the utterance's sequence. prefix: what the language models computed for its voice."""
    checked = driver.with_check(plan.cancel.check)
    return checked.prefill(utterance.sequence, prefix, utterance.shared if prefix else 0)


class Take:
    """An iterator over the patches of an utterance, each with its audio (samples,), and a context manager.

    While a patch is decoded, the next one is predicted on another thread, except at the very beginning, when nothing
    is audible yet. Leaving the context waits for that one; if an error or the reader ends the take, it is cancelled.

    start: what to speak from. known: patches of an earlier take, after which this one speaks on. noise: of the others.
    ends: see `Driver.generate_patches`.
    """

    def __init__(
        self, plan: Plan, driver: Driver, utterance: Utterance, start: Prefilled, noise: NoiseSource,
        known: Items[Patch] = (), ends: Callable[[bool, Floats | None], bool] | None = None,
    ) -> None:  # fmt: skip
        self._utterance, self._rate = utterance, plan.bundle.architecture.output_sample_rate
        self._stop = CancelToken(plan.cancel)
        self._decode = driver.patch_decoder(utterance.sequence)
        self._stretch = Stretching(utterance.segment.speed, self._rate)
        for patch in known:  # For the states of both.
            self._audio(patch)
        self._patches = driver.with_check(self._stop.check).generate_patches(
            start, plan.options, noise, utterance.limit, start=len(known), ends=ends
        )
        # ONNX Runtime releases the GIL while it computes; coremltools' `predict` holds it, so nothing runs in parallel.
        parallel = driver.models[AUDIO_VAE_DECODER].releases_gil
        self._pool = ThreadPoolExecutor(1, "predict") if parallel else None
        self._predicted: Future[Patch | None] | None = None

    def __iter__(self) -> Take:
        return self

    def __next__(self) -> tuple[Patch, Audio]:
        if (patch := self._next_patch()) is None:
            raise StopIteration
        if self._utterance.index == 0 and patch.index == 0:
            audio = self._audio(patch)
            self._predict()
        else:
            self._predict()
            audio = self._audio(patch)
        return patch, audio

    def __enter__(self) -> Take:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._stop.cancel()
        if self._pool is not None:
            self._pool.shutdown()
        self._patches.close()

    def _next_patch(self) -> Patch | None:
        if self._pool is None:
            return next(self._patches, None)
        predicted, self._predicted = self._predicted or self._pool.submit(next, self._patches, None), None
        try:
            return predicted.result()
        finally:
            # An error's traceback refers to this frame: a reference to the error would form a cycle with the KV caches.
            del predicted

    def _predict(self) -> None:
        if self._pool is not None:
            self._predicted = self._pool.submit(next, self._patches, None)

    def _audio(self, patch: Patch) -> Audio:
        """A patch's audio (samples,) at the segment's speed, faded where its segment joins another one.

        The last patch is known when it is generated, so streamed and whole speech have the same samples.
        """
        utterance, audio = self._utterance, self._decode(patch.latents)
        if utterance.index > 0 and patch.index == 0:
            audio = faded_in(audio, self._rate)
        # In a session it is unknown whether another sentence follows; there, only speech cut off by a limit is faded.
        followed = utterance.segment.followed
        joins = not patch.stops if followed is None else followed
        last = utterance.ends_with(patch)
        audio = self._stretch(audio, last=last)
        return faded_out(audio, self._rate) if last and joins else audio
