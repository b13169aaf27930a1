"""How long a segment's speech should be, and what is suspicious about another length.

With a `speech.json` (`SpeechProfile`) the expected duration follows from the number of letters and the pace of the
voice. Without one upstream's rule applies, a maximum number of patches per text token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from voxcpm_constants.speech_profile import SpeechProfile
from voxcpm_runtime.model.sequence import Sequence
from voxcpm_runtime.options import GenerationOptions
from voxcpm_runtime.speech.budget import min_anchor
from voxcpm_runtime.speech.plan import Plan
from voxcpm_runtime.speech.results import PlannedSegment, Reason
from voxcpm_runtime.voices.voice import Voice

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


def length_of_segment(
    plan: Plan, segment: PlannedSegment, voice: Voice | None, sequence: Sequence, prompt_letters: int
) -> ExpectedLength:
    """The expected length of a segment in a voice. prompt_letters: letters spoken in its prompt; 0 if unknown."""
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
