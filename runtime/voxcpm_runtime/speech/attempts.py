"""Attempts at one utterance: patches and their audio, started again while the speech is bad."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Iterator
from typing import NamedTuple

import numpy as np

from voxcpm_constants.step_models import AUDIO_VAE_DECODER
from voxcpm_runtime.audio.pcm import Audio
from voxcpm_runtime.backends.step_function import releases_gil
from voxcpm_runtime.model.batch_slots import Slot
from voxcpm_runtime.model.driver import Driver, NoiseSource, Patch, Prefilled, Prefix
from voxcpm_runtime.speech.cancellation import CancelToken, polling, polling_patch
from voxcpm_runtime.speech.expected_length import Reason
from voxcpm_runtime.speech.one_ahead import one_ahead
from voxcpm_runtime.speech.plan import Plan
from voxcpm_runtime.speech.results import TooLongWarning, TooShortWarning
from voxcpm_runtime.speech.utterance import Utterance

_NOTHING: Audio = np.zeros(0, np.float32)
_CATEGORIES: dict[Reason, type[UserWarning]] = {
    "long": TooLongWarning,
    "short": TooShortWarning,
    "cut": UserWarning,
}


class SpokenPatch(NamedTuple):
    """A patch with its audio, and the attempt that it belongs to."""

    patch: Patch | None
    """None if the attempt so far was rejected and another one begins, or an earlier one that was better follows."""
    audio: Audio
    """The decoded patch (samples,)."""
    attempt: int
    """Number of the attempt, from 1."""
    attempts: int
    """Number of attempts that were made so far."""
    began: float
    """When the attempt began, by `time.perf_counter`."""
    reason: Reason = ""
    """What is suspicious about the attempt by now; a length only with `retry_badcase`."""
    last: bool = False
    """Whether the attempt ends with this patch."""


def attempts(
    plan: Plan,
    utterance: Utterance,
    slot: Slot,
    prefix: Prefix | None,
    ending: CancelToken,
    *,
    retries: bool,
) -> Generator[SpokenPatch, None, None]:
    """The patches of one attempt after another, until one is good or all attempts are used.

    Of several bad attempts the one is kept that ended by itself and whose length is nearest to the expected one: if it
    was not the last, it follows once more. slot: where it is spoken. prefix: what the language models computed for the
    utterance's voice. ending: a token of this utterance alone, whose parent is the plan's `cancel`. retries: False
    makes one attempt only, for audio that is heard immediately; then a warning comes as soon as the speech is
    suspicious.

    Closing the iterator ends the generation between two Euler steps, as the plan's `cancel` does. Raises Cancelled.
    Warns of speech that is suspicious in the attempt that is kept: TooLongWarning, TooShortWarning, or UserWarning if
    the KV cache cut it off.
    """
    began = time.perf_counter()
    driver = slot.driver
    polled = driver.over(polling(driver.models, ending), polling_patch(driver.next_patch, ending))
    prefilled = polled.prefill(utterance.sequence, prefix, utterance.shared if prefix else 0)
    beside = releases_gil(driver.models[AUDIO_VAE_DECODER])
    judged = plan.options.retry_badcase
    maximum = max(1, plan.options.retry_badcase_max_times) if judged and retries else 1
    rejected: list[list[SpokenPatch]] = []
    for attempt in range(1, maximum + 1):
        if attempt > 1:
            began = time.perf_counter()
            yield SpokenPatch(None, _NOTHING, attempt, attempt, began)
        spoken: list[SpokenPatch] = []
        reason: Reason = ""
        noise = plan.randomness.noise(utterance.index, attempt - 1)
        for patch, audio in _decoded(plan, utterance, slot, polled, prefilled, noise, ending, beside=beside):
            before, reason = reason, _reason(utterance, patch, judged=judged)
            last = patch.stops or patch.index + 1 == utterance.limit
            told = SpokenPatch(patch, audio, attempt, attempt, began, reason, last)
            if retries:
                spoken.append(told)
            if reason and not before and not retries:
                _warn(plan, utterance, reason, patch.index + 1, "it cannot be tried again once it is heard")
            yield told
        if not reason:
            return
        rejected.append(spoken)
    if not retries:
        return
    best = _best(utterance, rejected)
    if best is not rejected[-1]:
        # As if it had begun so late that it ended now: all other attempts are no work on this speech.
        after = rejected[best[0].attempt]
        began = time.perf_counter() - (after[0].began - best[0].began)
        for told in (SpokenPatch(None, _NOTHING, best[0].attempt, maximum, began), *best):
            yield told._replace(attempts=maximum, began=began)
    kept = f"of {maximum} attempts the best one is kept" if maximum > 1 else "it was not tried again"
    _warn(plan, utterance, best[-1].reason, len(best), kept)


def _reason(utterance: Utterance, patch: Patch, *, judged: bool) -> Reason:
    """What is suspicious about an attempt that has come to this patch."""
    patches = patch.index + 1
    if judged and (reason := utterance.length.reason(patches, stopped=patch.stops)):
        return reason
    cut = utterance.limited_by_cache and not patch.stops and patches == utterance.limit
    return "cut" if cut else ""


def _best(utterance: Utterance, rejected: list[list[SpokenPatch]]) -> list[SpokenPatch]:
    """The least bad attempt; of equally bad ones the last, which upstream keeps."""

    def badness(spoken: list[SpokenPatch]) -> tuple[bool, float]:
        patch = spoken[-1].patch
        return utterance.length.badness(len(spoken), stopped=patch is not None and patch.stops)

    return min(reversed(rejected), key=badness)


def _decoded(
    plan: Plan,
    utterance: Utterance,
    slot: Slot,
    driver: Driver,
    prefilled: Prefilled,
    noise: NoiseSource,
    ending: CancelToken,
    *,
    beside: bool,
) -> Iterator[tuple[Patch, Audio]]:
    """Each patch of one attempt with its audio.

    Where step models release the GIL, a patch is decoded while the next one is predicted.
    """
    decode = driver.patch_decoder(utterance.sequence)
    # A caller's own source of noise is not drawn from for a patch that nobody asks for.
    ahead = plan.randomness.rng is None
    patches = slot.computed(
        driver.generate_patches(prefilled, plan.options, noise, utterance.limit, ahead=ahead)
    )
    if beside:
        patches = one_ahead(patches)
    # Closed last, which waits for its thread: the slot is another utterance's afterwards.
    with contextlib.closing(patches):
        finished = False
        try:
            for patch in patches:
                yield patch, decode(patch.latents)
            finished = True
        finally:
            if not finished:
                ending.cancel()


def _warn(plan: Plan, utterance: Utterance, reason: Reason, patches: int, then: str) -> None:
    """Warn of a suspicious segment. then: what became of it."""
    number, length = utterance.index + 1, utterance.length
    if reason == "cut":
        message = (
            f"segment {number}: the speech was cut off after {patches} patches: the KV cache is full; {then}; "
            "shorten the text or the prompt, or convert with a greater --max-length"
        )
    else:
        against = (
            f"{patches} patches for {utterance.target_tokens} tokens"
            if length.seconds is None
            else f"{patches * length.patch_seconds:.1f} s, expected {length.seconds:.1f} s"
        )
        message = (
            f"segment {number}: the speech is suspiciously {reason} for its text ({against}); {then}; "
            "another seed may do better"
        )
    plan.warn(message, _CATEGORIES[reason])
