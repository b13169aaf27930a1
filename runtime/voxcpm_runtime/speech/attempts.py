"""The attempts at one utterance: repairs of words that are lost or repeated, and retries of bad speech."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator
from dataclasses import replace

import numpy as np

from voxcpm_constants.errors import InputError, VoxCPMWarning, system_errors_as, warn
from voxcpm_runtime.model.driver import Driver, Patch, Prefilled
from voxcpm_runtime.speech.plan import Plan
from voxcpm_runtime.speech.results import Piece, Reason, TooLongWarning, TooShortWarning
from voxcpm_runtime.speech.seeds import noise
from voxcpm_runtime.speech.spine import Take, Utterance
from voxcpm_runtime.words.coverage import Follower, word_counts

_CATEGORIES: dict[Reason, type[VoxCPMWarning]] = {"long": TooLongWarning, "short": TooShortWarning}
_NO_SAMPLES = np.zeros(0, np.float32)


def attempts(
    plan: Plan, driver: Driver, utterance: Utterance, start: Prefilled
) -> Generator[Piece, None, None]:
    """Yield the pieces of one attempt after another, until one is good or all attempts are used.

    A piece without latents begins a new attempt, or repairs this one (`attempt`). Of several bad attempts the best is
    kept, with the fewest words missing or repeated, then by length (`ExpectedLength.badness`); if it was not the last
    one, its pieces are repeated. Warns if the attempt that is kept is suspicious: TooLongWarning, TooShortWarning, or
    UserWarning if the KV cache cut it off. start, errors: see `attempt`.
    """
    options = plan.options
    maximum = max(1, options.retry_badcase_max_times) if options.retry_badcase else 1
    rejected: list[list[Piece]] = []
    for number in range(1, maximum + 1):
        if number > 1:
            yield Piece(_NO_SAMPLES, utterance.index, attempt=number, attempts=number)
        spoken: list[Piece] = []
        for piece in attempt(plan, driver, utterance, start, number):
            if piece.latents is None:
                del spoken[piece.patches :]
            else:
                spoken.append(piece)
            yield piece
        if not (spoken[-1].reason or _missed(spoken)):
            return
        rejected.append(spoken)
    # Of equally bad attempts the last, as upstream.
    best = min(
        reversed(rejected), key=lambda a: (_missed(a), *utterance.length.badness(len(a), stopped=a[-1].stops))
    )
    if best is not rejected[-1]:
        yield Piece(_NO_SAMPLES, utterance.index, attempt=best[0].attempt, attempts=maximum)
        for piece in best:
            yield replace(piece, attempts=maximum)
    if best[-1].reason:
        kept = f"the best of {maximum} attempts is kept" if maximum > 1 else "it was not retried"
        _warn(utterance, best[-1], kept)


def attempt(
    plan: Plan, driver: Driver, utterance: Utterance, start: Prefilled, number: int = 1,
    held: Callable[[], int] | None = None,
) -> Generator[Piece, None, None]:  # fmt: skip
    """Yield the pieces of one attempt, of that number from 1.

    After a jump in the text, a piece without latents goes back to its number of patches; the others are generated
    again, with new noise, from the last patch in order on: the KV caches are written only from there on. start: the
    utterance, prefilled. held: in a stream, the number of patches that are not handed out; then only these are
    repaired, and the warning is issued as soon as the speech is suspicious.

    Closing the iterator cancels before the next step, as the plan's `cancel` does. Raises Cancelled, and InputError for
    a system error, such as too little memory.
    """
    segment, request = utterance.segment, plan.request
    follower = _follower(plan, utterance)
    patches: list[Patch] = []
    reason: Reason = ""
    with system_errors_as(InputError):
        for repair in itertools.count():
            rng = request.rng
            if rng is None:
                rng = noise(plan.seed, utterance.index, number - 1, repair)
            ends, again = follower.ends if follower else None, None
            with Take(plan, driver, utterance, start, rng, patches, ends) as take:
                for patch, audio in take:
                    handed_out = 0 if held is None else len(patches) - held()
                    again = follower.repair_from(patch.index, repair, handed_out) if follower else None
                    if again is not None:
                        break
                    patches.append(patch)
                    before, reason = reason, _reason(utterance, patch, judged=plan.options.retry_badcase)
                    last = utterance.ends_with(patch)
                    rows = None if patch.before is None else patch.before.attention
                    seconds = utterance.length.seconds
                    piece = Piece(
                        audio=audio,
                        segment=utterance.index,
                        patches=patch.index + 1,
                        latents=patch.latents,
                        attempt=number,
                        attempts=number,
                        stops=patch.stops,
                        last=last,
                        reason=reason,
                        expected_seconds=None if seconds is None else seconds / segment.speed,
                        planned=segment,
                        attention=None if rows is None else rows[:, utterance.text],
                        said_counts=follower.counts() if follower and (last or request.keep_partial) else (),
                    )
                    if held is not None and reason and not before:
                        _warn(utterance, piece, "streams are not retried")
                    yield piece
            if follower is None or again is None:
                return
            start = patches[again].before or start
            del patches[again:]
            follower.rewind(again)
            yield Piece(_NO_SAMPLES, utterance.index, patches=again, attempt=number, attempts=number)


def _follower(plan: Plan, utterance: Utterance) -> Follower | None:
    """Follows the words of an attempt; None without alignment heads, without `every_word`, and without tokens."""
    if not plan.follows_text:
        return None
    said = utterance.segment.said
    places = [place for _, place in plan.bundle.tokenizer.placed(said)]
    return Follower(said, places, utterance.text, plan.options.min_len + 1) if places else None


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
