"""One segment in one voice: its prefill, its expected length, and the attempts at it.

With a `speech.json` (`SpeechProfile`) the expected duration follows from the number of letters and the pace of the
voice. Without one upstream's rule applies, a maximum number of patches per text token.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from voxcpm_constants.errors import InputError, VoxCPMWarning, system_errors_as, warn
from voxcpm_constants.speech_profile import SpeechProfile
from voxcpm_constants.step_models import AUDIO_VAE_DECODER
from voxcpm_runtime.audio.pcm import Audio, faded_in, faded_out
from voxcpm_runtime.audio.stretching import Stretching
from voxcpm_runtime.model.driver import Driver, Patch, Prefilled, Prefix
from voxcpm_runtime.model.sequence import Latents, Sequence, build_sequence
from voxcpm_runtime.options import GenerationOptions
from voxcpm_runtime.speech.arguments import CancelToken
from voxcpm_runtime.speech.plan import Plan
from voxcpm_runtime.speech.results import Piece, PlannedSegment, Reason, TooLongWarning, TooShortWarning
from voxcpm_runtime.speech.room import min_anchor, reference_positions
from voxcpm_runtime.voices.voice import Voice
from voxcpm_runtime.words.coverage import Follower, word_counts

_UPSTREAM_RATIO = GenerationOptions.retry_badcase_ratio_threshold
# Multiples of the expected duration where speech is suspicious, and where an attempt is aborted. Good speech of the
# built-in voice takes 0.8 to 1.3 times the duration expected at its pace (TRIALS.md, speech-json).
_LONG_RATIO, _SHORT_RATIO, _ABORT_RATIO = 1.4, 0.6, 2.0
# Seconds that any text may exceed the expected duration, because single words may be said slowly.
_SLACK = 0.8
_MIN_LONG_PATCHES = 3
"""Speech of fewer than min_len + 3 patches is never too long: the shortest speech has min_len + 2."""
# Minimum and maximum pace of a prompt; long silence or a wrong transcript would exceed them.
_PACE_RANGE = (0.8, 1.5)
_CATEGORIES: dict[Reason, type[VoxCPMWarning]] = {"long": TooLongWarning, "short": TooShortWarning}


@dataclass(frozen=True)
class ExpectedLength:
    """The expected length of an utterance."""

    seconds: float | None  # Expected seconds of speech; None without a `speech.json`
    patch_seconds: float  # Seconds of a patch
    long_from: float  # Patches from which speech is suspiciously long
    short_below: float = 0.0  # Patches below which finished speech is suspiciously short
    maximum: float = math.inf  # Patches at which an attempt is aborted

    def reason(self, patches: int, *, stopped: bool) -> Reason:
        """What is suspicious about speech of so many patches. stopped: whether the stop head ended it."""
        if patches >= self.long_from:
            return "long"
        return "short" if stopped and patches < self.short_below else ""

    def badness(self, patches: int, *, stopped: bool) -> tuple[bool, float]:
        """A sort key for bad attempts; equal for all without an expected length.

        Speech not ended by the stop head is worst, as its real length is unknown. Otherwise the key is the absolute
        logarithm of the ratio to the expected length.
        """
        if self.seconds is None:
            return False, 0.0
        return not stopped, abs(math.log(patches * self.patch_seconds / self.seconds))


def expected_length(
    profile: SpeechProfile, letters: int, patch_seconds: float, *, pace: float = 1.0, min_len: int = 0
) -> ExpectedLength:
    """The expected length of a text. pace: of the voice, relative to the profile's. min_len: the option."""
    seconds = profile.expected_seconds(max(letters, 1)) * pace
    long_from = max(max(_LONG_RATIO * seconds, seconds + _SLACK) / patch_seconds, min_len + _MIN_LONG_PATCHES)
    return ExpectedLength(
        seconds=seconds,
        patch_seconds=patch_seconds,
        long_from=long_from,
        short_below=_SHORT_RATIO * seconds / patch_seconds,
        maximum=math.ceil(max((_ABORT_RATIO * seconds + _SLACK) / patch_seconds, long_from)),
    )


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
    length = _length(plan, segment, voice, sequence, prompt_letters)
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


def _length(
    plan: Plan, segment: PlannedSegment, voice: Voice | None, sequence: Sequence, prompt_letters: int
) -> ExpectedLength:
    a, options, profile = plan.bundle.architecture, plan.options, plan.bundle.manifest.speech
    if profile is None or options.retry_badcase_ratio_threshold != _UPSTREAM_RATIO:
        # Upstream's rule; generations differ in whether the decoder's context counts as speech.
        context = len(sequence.decoder_context(a.traits.decoder_context_patches))
        context_patches = context if a.traits.context_counts_as_speech else 0
        long_from = segment.target_tokens * options.retry_badcase_ratio_threshold - context_patches
        # Unlike upstream, the minimum length is never too long.
        return ExpectedLength(None, a.patch_seconds, max(long_from, options.min_len + _MIN_LONG_PATCHES))
    pace = 1.0
    # One or two words do not tell the pace.
    if voice is not None and prompt_letters and len(segment.transcript_tokens) >= min_anchor(plan.bundle):
        seconds = voice.prompt_patches * a.patch_seconds
        pace = min(max(seconds / profile.expected_seconds(prompt_letters), _PACE_RANGE[0]), _PACE_RANGE[1])
    return expected_length(profile, segment.letters, a.patch_seconds, pace=pace, min_len=options.min_len)


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
