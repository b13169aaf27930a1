"""The attempts at one utterance: retries of bad speech, and repairs of words that are lost or repeated."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from voxcpm_constants.errors import InputError, VoxCPMWarning, system_errors_as, warn
from voxcpm_constants.step_models import AUDIO_VAE_DECODER
from voxcpm_runtime.audio.pcm import Audio, faded_in, faded_out
from voxcpm_runtime.audio.stretching import Stretching
from voxcpm_runtime.model.driver import Driver, Patch, Prefilled, Prefix
from voxcpm_runtime.model.sequence import Latents
from voxcpm_runtime.speech.arguments import CancelToken
from voxcpm_runtime.speech.plan import Plan
from voxcpm_runtime.speech.results import Piece, Reason, TooLongWarning, TooShortWarning
from voxcpm_runtime.speech.utterance import Utterance
from voxcpm_runtime.words.coverage import Follower, word_counts

_CATEGORIES: dict[Reason, type[VoxCPMWarning]] = {"long": TooLongWarning, "short": TooShortWarning}


def attempts(
    plan: Plan, driver: Driver, utterance: Utterance, prefix: Prefix | None, *, held: Callable[[], int] | None = None
) -> Generator[Piece, None, None]:  # fmt: skip
    """Yield the patches of one attempt after another, until one is good or all attempts are used.

    A piece without latents goes back: to the beginning for a new attempt, or to its number of patches for a repair.
    Of several bad attempts the best is kept, with the fewest words missing or repeated, then by length
    (`ExpectedLength.badness`); if it was not the last one, its pieces are repeated. prefix: what the language models
    computed for the utterance's voice. held: in a stream, the number of patches that are not handed out; then there is
    a single attempt, only these are repaired, and the warning is issued as soon as the speech is suspicious.

    Closing the iterator cancels before the next step, as the plan's `cancel` does. Raises Cancelled, and InputError for
    a system error, such as too little memory. Warns if the attempt that is kept is suspicious: TooLongWarning,
    TooShortWarning, or UserWarning if the KV cache cut it off.
    """
    with system_errors_as(InputError):
        stop_token = CancelToken(plan.cancel)
        driver = driver.with_check(stop_token.check)
        prefilled = driver.prefill(utterance.sequence, prefix, utterance.shared if prefix else 0)
        options = plan.options
        maximum = max(1, options.retry_badcase_max_times) if options.retry_badcase and held is None else 1
        rejected: list[list[Piece]] = []
        restart = np.zeros(0, np.float32)
        segment, seconds, speed = utterance.segment, utterance.length.seconds, utterance.segment.speed
        placed = plan.bundle.tokenizer.placed(segment.said) if plan.follows_text else []
        places = [place for _, place in placed]
        for attempt in range(1, maximum + 1):
            if attempt > 1:
                yield Piece(restart, utterance.index, attempt=attempt, attempts=attempt)
            spoken: list[Piece] = []
            reason: Reason = ""
            follower = Follower(segment.said, places, utterance.text) if places else None
            takes = _takes(plan, driver, utterance, prefilled, attempt, follower, held)
            try:
                for patch, audio in takes:
                    if patch.index < len(spoken):
                        del spoken[patch.index :]
                        yield Piece(
                            restart, utterance.index, patches=patch.index, attempt=attempt, attempts=attempt
                        )
                    before, reason = reason, _reason(utterance, patch, judged=options.retry_badcase)
                    last = patch.stops or patch.index + 1 == utterance.limit
                    rows = None if patch.before is None else patch.before.attention
                    piece = Piece(
                        audio=audio,
                        segment=utterance.index,
                        patches=patch.index + 1,
                        latents=patch.latents,
                        attempt=attempt,
                        attempts=attempt,
                        stops=patch.stops,
                        reason=reason,
                        expected_seconds=None if seconds is None else seconds / speed,
                        planned=utterance.segment,
                        attention=None if rows is None else rows[:, utterance.text],
                        said_counts=follower.counts()
                        if follower and (last or plan.arguments.keep_partial)
                        else (),
                    )
                    spoken.append(piece)
                    if held is not None and reason and not before:
                        _warn(utterance, piece, "streams are not retried")
                    yield piece
            except BaseException:
                stop_token.cancel()
                raise
            finally:
                # Wait for the patch that is being predicted.
                takes.close()
            if held is not None or not (reason or _missed(spoken)):
                return
            rejected.append(spoken)
        # Of equally bad attempts the last, as upstream.
        best = min(
            reversed(rejected),
            key=lambda a: (_missed(a), *utterance.length.badness(len(a), stopped=a[-1].stops)),
        )
        if best is not rejected[-1]:
            yield Piece(restart, utterance.index, attempt=best[0].attempt, attempts=maximum)
            for piece in best:
                yield replace(piece, attempts=maximum)
        kept = f"the best of {maximum} attempts is kept" if maximum > 1 else "it was not retried"
        if best[-1].reason:
            _warn(utterance, best[-1], kept)


def _takes(
    plan: Plan, driver: Driver, utterance: Utterance, prefilled: Prefilled, attempt: int, follower: Follower | None,
    held: Callable[[], int] | None,
) -> Generator[tuple[Patch, Audio], None, None]:  # fmt: skip
    """Yield the patches of one attempt with their audio (samples,).

    After a jump in the text they are generated again, with new noise, from the last patch in order on: the KV caches
    are written only from there on. held: see `attempts`.
    """
    # ONNX Runtime releases the GIL while it computes; coremltools' `predict` holds it, so nothing runs in parallel.
    parallel = getattr(driver.models[AUDIO_VAE_DECODER], "releases_gil", True)
    rate = plan.bundle.architecture.output_sample_rate
    patches: list[Patch] = []
    for repair in itertools.count():
        decode = driver.patch_decoder(utterance.sequence)
        stretch = Stretching(utterance.segment.speed, rate)
        for patch in patches:
            # For the states of both.
            _segment_audio(plan, utterance, patch, decode(patch.latents), stretch)
        generated = driver.generate_patches(
            prefilled, plan.options, plan.noise(utterance.index, attempt - 1, repair), utterance.limit,
            start=len(patches), ends=follower.ends if follower else None,
        )  # fmt: skip
        pairs = decoded(generated, decode, parallel=parallel, first_alone=utterance.index == 0)
        again: int | None = None
        with contextlib.closing(pairs):
            for patch, audio in pairs:
                handed_out = 0 if held is None else len(patches) - held()
                again = follower.repair_from(patch.index, repair, handed_out) if follower else None
                if again is not None:
                    break
                patches.append(patch)
                yield patch, _segment_audio(plan, utterance, patch, audio, stretch)
        if follower is None or again is None:
            return
        prefilled = patches[again].before or prefilled
        del patches[again:]
        follower.rewind(again)


def decoded(
    patches: Generator[Patch, None, None],
    decode: Callable[[Latents], Audio],
    *,
    parallel: bool,
    first_alone: bool,
) -> Generator[tuple[Patch, Audio], None, None]:
    """Yield each patch with its audio (samples,).

    parallel: predict each patch on another thread while the previous one is decoded. first_alone: decode the first
    one before that, as nothing is audible until then. An error is raised in place of its patch. Closing waits for the
    patch that is being predicted.
    """
    if not parallel:
        with contextlib.closing(patches):
            for patch in patches:
                yield patch, decode(patch.latents)
        return
    with ThreadPoolExecutor(1, "predict") as pool:
        pending = pool.submit(next, patches, None)
        try:
            while (predicted := pending.result()) is not None:
                audio = decode(predicted.latents) if first_alone and not predicted.index else None
                pending = pool.submit(next, patches, None)
                yield predicted, decode(predicted.latents) if audio is None else audio
        finally:
            # An error's traceback refers to this frame: a reference to the error would form a cycle with the KV caches.
            del pending


def _segment_audio(
    plan: Plan, utterance: Utterance, patch: Patch, audio: Audio, stretch: Stretching
) -> Audio:
    """A patch's audio (samples,) at the segment's speed, faded where its segment joins another one.

    The last patch is known when it is generated, so streamed and whole speech have the same samples.
    """
    rate = plan.bundle.architecture.output_sample_rate
    if utterance.index > 0 and patch.index == 0:
        audio = faded_in(audio, rate)
    # In a session it is unknown whether another sentence follows; there, only speech cut off by a limit is faded.
    joins = not patch.stops if utterance.segment.followed is None else utterance.segment.followed
    last = patch.stops or patch.index + 1 == utterance.limit
    audio = stretch(audio, last=last)
    return faded_out(audio, rate) if last and joins else audio


def _missed(spoken: list[Piece]) -> int:
    """The number of words that an attempt lacks or repeats."""
    segment, counts = spoken[-1].planned, spoken[-1].said_counts
    return sum(count != 1 for count in word_counts(segment.text, segment.said, counts)) if segment else 0


def _reason(utterance: Utterance, patch: Patch, *, judged: bool) -> Reason:
    """What is suspicious about an attempt up to this patch. judged: whether to check its length."""
    patches = patch.index + 1
    if judged and (reason := utterance.length.reason(patches, stopped=patch.stops)):
        return reason
    cut = utterance.limited_by_cache and not patch.stops and patches == utterance.limit
    return "cut" if cut else ""


def _warn(utterance: Utterance, last: Piece, then: str) -> None:
    """Warn of a suspicious segment. then: what was done about it."""
    patches, seconds = last.patches, utterance.length.seconds
    if last.reason == "cut":
        what = f"was cut off after {patches} patches: the KV cache is full"
        advice = "shorten the text or the prompt, or convert with a larger --max-length"
    else:
        against = f"{patches} patches for {utterance.segment.target_tokens} tokens"
        if seconds is not None:
            against = f"{patches * utterance.length.patch_seconds:.1f} s, expected {seconds:.1f} s"
        what = f"is suspiciously {last.reason} for its text ({against})"
        advice = "another seed may be better"
    message = f"segment {utterance.index + 1}: the speech {what}; {then}; {advice}"
    warn(message, _CATEGORIES.get(last.reason, VoxCPMWarning))
