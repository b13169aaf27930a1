"""Attempts at one utterance: patches and their audio, started again while the speech is bad."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from voxcpm_constants.step_models import AUDIO_VAE_DECODER
from voxcpm_runtime.audio.pcm import Audio
from voxcpm_runtime.backends.step_function import releases_gil
from voxcpm_runtime.model.driver import Driver, NoiseSource, Patch, Prefilled, Prefix
from voxcpm_runtime.speech.cancellation import CancelToken, polling
from voxcpm_runtime.speech.one_ahead import one_ahead
from voxcpm_runtime.speech.plan import Plan
from voxcpm_runtime.speech.results import TooLongWarning
from voxcpm_runtime.speech.utterance import Utterance


class SpokenPatch(NamedTuple):
    """A patch with its audio, and the attempt that it belongs to."""

    patch: Patch | None
    """None if the attempts so far were rejected and another one begins."""
    audio: Audio
    """The decoded patch (samples,)."""
    attempt: int
    """Number of the attempt, from 1."""
    began: float
    """When the attempt began, by `time.perf_counter`."""
    too_long: bool
    """Whether the attempt is suspiciously long for its text by now; always False without `retry_badcase`."""


def attempts(
    plan: Plan, utterance: Utterance, driver: Driver, prefix: Prefix | None, *, retries: bool
) -> Iterator[SpokenPatch]:
    """The patches of one attempt after another, until one is good or all attempts are used.

    prefix: what the language models computed for the utterance's voice. retries: False makes one attempt only, for
    audio that is heard immediately; then a warning comes as soon as the speech is too long.

    Closing the iterator ends the generation between two Euler steps, as the plan's `cancel` does. Raises Cancelled.
    Warns of speech that is bad in the last attempt: TooLongWarning, or UserWarning if the KV cache cut it off.
    """
    began = time.perf_counter()
    ending = CancelToken(plan.cancel)
    polled = driver.over(polling(driver.models, ending))
    prefilled = polled.prefill(utterance.sequence, prefix, utterance.shared if prefix else 0)
    beside = releases_gil(driver.models[AUDIO_VAE_DECODER])
    judged = plan.options.retry_badcase
    most = plan.options.retry_badcase_max_times if judged and retries else 1
    patches, too_long, cut, warned = 0, False, False, False
    for attempt in range(1, most + 1):
        if attempt > 1:
            began = time.perf_counter()
            yield SpokenPatch(None, np.zeros(0, np.float32), attempt, began, too_long=False)
        noise = plan.randomness.noise(utterance.index, attempt - 1)
        for patch, audio in _decoded(plan, utterance, polled, prefilled, noise, ending, beside=beside):
            patches = patch.index + 1
            too_long = judged and patches >= utterance.too_long_from
            cut = utterance.limited_by_cache and not patch.stops and patches == utterance.limit
            if too_long and not retries and not warned:
                _warn_too_long(utterance, patches, "it cannot be tried again once it is heard")
                warned = True
            yield SpokenPatch(patch, audio, attempt, began, too_long)
        if not (too_long or cut):
            break
    if too_long and retries:
        tried = f"{attempt} attempts" if attempt > 1 else "1 attempt"
        _warn_too_long(utterance, patches, f"after {tried} it is kept as it is")
    if cut:
        warnings.warn(
            f"the speech was cut off after {utterance.limit} patches: the KV cache is full; "
            "shorten the text or the prompt, or convert with a greater --max-length",
            stacklevel=2,
        )


def _decoded(
    plan: Plan,
    utterance: Utterance,
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
    # A variable, so that the `finally` below runs before the iterator is closed, which waits for its thread.
    patches = driver.generate_patches(prefilled, plan.options, noise, utterance.limit)
    if beside:
        patches = one_ahead(patches)
    finished = False
    try:
        for patch in patches:
            yield patch, decode(patch.latents)
        finished = True
    finally:
        if not finished:
            ending.cancel()


def _warn_too_long(utterance: Utterance, patches: int, then: str) -> None:
    warnings.warn(
        f"the speech is suspiciously long for its text ({patches} patches for {utterance.target_tokens} tokens); "
        f"{then}; another seed may do better",
        TooLongWarning,
        stacklevel=3,
    )
