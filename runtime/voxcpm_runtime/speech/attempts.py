"""Attempts at one utterance: patches and their audio, started again while the speech is bad."""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import replace

import numpy as np

from voxcpm_constants.errors import InputError, system_errors_as
from voxcpm_constants.step_models import AUDIO_VAE_DECODER
from voxcpm_runtime.audio.pcm import Audio, faded_in, faded_out
from voxcpm_runtime.backends.step_function import releases_gil
from voxcpm_runtime.model.driver import Driver, Patch, Prefix
from voxcpm_runtime.speech.cancellation import CancelToken, polling
from voxcpm_runtime.speech.expected_length import Reason
from voxcpm_runtime.speech.one_ahead import one_ahead
from voxcpm_runtime.speech.plan import Plan
from voxcpm_runtime.speech.results import Piece, TooLongWarning, TooShortWarning
from voxcpm_runtime.speech.utterance import Utterance

_CATEGORIES: dict[Reason, type[UserWarning]] = {
    "long": TooLongWarning,
    "short": TooShortWarning,
    "cut": UserWarning,
}


def attempts(
    plan: Plan,
    driver: Driver,
    utterance: Utterance,
    prefix: Prefix | None,
    *,
    retries: bool,
    ending: CancelToken | None = None,
) -> Generator[Piece, None, None]:
    """The patches of one attempt after another, until one is good or all attempts are used.

    A piece without latents says that another attempt begins. Of several bad attempts the one is kept that ended by
    itself and whose length is nearest to the expected one: if it was not the last, it follows once more. prefix: what
    the language models computed for the utterance's voice. retries: False makes one attempt only, for audio that is
    heard immediately; then a warning comes as soon as the speech is suspicious. ending: a token of this utterance
    alone, whose parent is the plan's `cancel`, if somebody else knows it, too.

    Closing the iterator ends the generation between two Euler steps, as the plan's `cancel` does. Raises Cancelled, and
    InputError if the system refuses something, such as memory. Warns of speech that is suspicious in the attempt that
    is kept: TooLongWarning, TooShortWarning, or UserWarning if the KV cache cut it off.
    """
    with system_errors_as(InputError):
        began = time.perf_counter()
        ending = ending or CancelToken(plan.cancel)
        beside = releases_gil(driver.models[AUDIO_VAE_DECODER])
        driver = polling(driver, ending)
        prefilled = driver.prefill(utterance.sequence, prefix, utterance.shared if prefix else 0)
        judged = plan.options.retry_badcase
        maximum = max(1, plan.options.retry_badcase_max_times) if judged and retries else 1
        rejected: list[list[Piece]] = []
        for attempt in range(1, maximum + 1):
            if attempt > 1:
                began = time.perf_counter()
                yield _restart(utterance, attempt, attempt, began)
            spoken: list[Piece] = []
            reason: Reason = ""
            decode = driver.patch_decoder(utterance.sequence)
            patches = driver.generate_patches(
                prefilled,
                plan.options,
                plan.randomness.noise(utterance.index, attempt - 1),
                utterance.limit,
                # A caller's own source of noise is not drawn from for a patch that nobody asks for.
                ahead=plan.randomness.rng is None,
            )
            if beside:
                # A patch is decoded while the next one is predicted.
                patches = one_ahead(patches)
            finished = False
            try:
                for patch in patches:
                    before, reason = reason, _reason(utterance, patch, judged=judged)
                    piece = Piece(
                        audio=_joining(plan, utterance, patch, decode(patch.latents)),
                        segment=utterance.index,
                        patches=patch.index + 1,
                        latents=patch.latents,
                        attempt=attempt,
                        attempts=attempt,
                        began=began,
                        stops=patch.stops,
                        reason=reason,
                        expected_seconds=utterance.length.seconds,
                        planned=utterance.segment,
                    )
                    if retries:
                        spoken.append(piece)
                    if reason and not before and not retries:
                        _warn(
                            plan,
                            utterance,
                            reason,
                            piece.patches,
                            "it cannot be tried again once it is heard",
                        )
                    yield piece
                finished = True
            finally:
                if not finished:
                    ending.cancel()
                # It waits for the thread that is one patch ahead.
                patches.close()
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
            yield _restart(utterance, best[0].attempt, maximum, began)
            for piece in best:
                yield replace(piece, attempts=maximum, began=began)
        kept = f"of {maximum} attempts the best one is kept" if maximum > 1 else "it was not tried again"
        _warn(plan, utterance, best[-1].reason, len(best), kept)


def _restart(utterance: Utterance, attempt: int, attempts: int, began: float) -> Piece:
    return Piece(np.zeros(0, np.float32), utterance.index, attempt=attempt, attempts=attempts, began=began)


def _joining(plan: Plan, utterance: Utterance, patch: Patch, audio: Audio) -> Audio:
    """A patch's audio (samples,), faded where its segment is joined to another one.

    A patch is known to be the last one when it is made, so streamed and whole speech have the same samples.
    """
    rate = plan.bundle.architecture.output_sample_rate
    if utterance.index > 0 and patch.index == 0:
        audio = faded_in(audio, rate)
    # Whether another sentence follows in a session is not known; there, speech that a limit ended is faded.
    joins = not patch.stops if utterance.segment.followed is None else utterance.segment.followed
    last = patch.stops or patch.index + 1 == utterance.limit
    return faded_out(audio, rate) if last and joins else audio


def _reason(utterance: Utterance, patch: Patch, *, judged: bool) -> Reason:
    """What is suspicious about an attempt that has come to this patch."""
    patches = patch.index + 1
    if judged and (reason := utterance.length.reason(patches, stopped=patch.stops)):
        return reason
    cut = utterance.limited_by_cache and not patch.stops and patches == utterance.limit
    return "cut" if cut else ""


def _best(utterance: Utterance, rejected: list[list[Piece]]) -> list[Piece]:
    """The least bad attempt; of equally bad ones the last, which upstream keeps."""

    def badness(spoken: list[Piece]) -> tuple[bool, float]:
        return utterance.length.badness(len(spoken), stopped=spoken[-1].stops)

    return min(reversed(rejected), key=badness)


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
            f"{patches} patches for {utterance.segment.target_tokens} tokens"
            if length.seconds is None
            else f"{patches * length.patch_seconds:.1f} s, expected {length.seconds:.1f} s"
        )
        message = (
            f"segment {number}: the speech is suspiciously {reason} for its text ({against}); {then}; "
            "another seed may do better"
        )
    plan.warn(message, _CATEGORIES[reason])
