"""How long speech may be, by the room in the KV cache, and how long it should be for its text.

With a `speech.json` (`SpeechProfile`) the expected time follows from the number of letters and the pace of the voice.
Without one upstream's rule applies: speech is too long from a number of patches for each text token on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from voxcpm_constants.errors import InputError
from voxcpm_constants.speech_profile import SpeechProfile
from voxcpm_runtime.bundle.opening import Bundle
from voxcpm_runtime.options import DEFAULT_MAX_LEN, SEGMENT_TOKENS, GenerationOptions
from voxcpm_runtime.speech.results import Reason
from voxcpm_runtime.voices.recordings import UnencodedVoice
from voxcpm_runtime.voices.voice import Voice

SECONDS_PER_TOKEN = 0.5
"""Upper estimate of the time that a token takes to say, slow speech included; it gives the room that a text needs."""
SECONDS_PER_LETTER = 0.12
"""The same for a vocabulary of letters."""
_ANCHOR_SECONDS = 5.0
"""Speech, by the estimates above, that is enough to be continued as the voice of a text; a heading alone is not."""
_AUDIO_START_POSITIONS = 1
_REFERENCE_MARKERS = 2
_SPARE_PATCHES = 10
"""Patches of silence that speech may have in addition to its text."""
# Shares of the expected time at which speech is suspicious, and at which an attempt is hopeless and ended. Good speech
# of the built-in voice takes 0.8 to 1.3 times the time expected at its pace (TRIALS.md, speech-json).
_LONG, _SHORT, _ENDED = 1.4, 0.6, 2.0
# Seconds that any text may take beyond the expected time: a word or two may be said slowly.
_MORE = 0.8
_MORE_THAN_MIN_LEN = 3
"""Speech counts as too long from min_len + 3 patches at the earliest: the shortest speech has min_len + 2."""
_PACES = (0.8, 1.5)
"""Minimum and maximum of a prompt's pace; long silence or a wrong transcript would give another."""


def reference_positions(voice: Voice | UnencodedVoice) -> int:
    """Positions that a voice's reference takes, its two markers included."""
    return voice.reference_patches + _REFERENCE_MARKERS if voice.reference_patches else 0


def positions(text_tokens: int, voice: Voice | UnencodedVoice | None) -> int:
    """Positions before the first generated patch: text tokens, audio start, and the voice's audio with its markers."""
    before = text_tokens + _AUDIO_START_POSITIONS
    return before if voice is None else before + voice.prompt_patches + reference_positions(voice)


def patch_bound(target_tokens: int, options: GenerationOptions) -> int:
    """Maximum number of patches for a text of `target_tokens` tokens, KV cache aside (upstream `_generate`).

    Unlike upstream's bound, it is never below `min_patches`.
    """
    by_ratio = int(target_tokens * options.retry_badcase_ratio_threshold + 10)
    return max(min(by_ratio, options.max_len or DEFAULT_MAX_LEN), min_patches(options))


def min_patches(options: GenerationOptions) -> int:
    """Number of patches of the shortest segment: upstream first reads the stop head at index `min_len` + 1."""
    return min(options.min_len + 2, options.max_len or options.min_len + 2)


def patch_limit(taken: int, target_tokens: int, options: GenerationOptions, capacity: int) -> int:
    """Maximum number of patches for a text if `taken` of the KV cache's `capacity` positions are already in use.

    Raises InputError if not even the shortest speech fits.
    """
    minimum = min_patches(options)
    if taken + minimum > capacity:
        raise InputError(
            f"text, prompt and earlier segments take {taken} positions and the speech at least {minimum}: "
            f"{taken + minimum} needed, but the KV cache has {capacity}; shorten the text or the prompt, "
            "lower min_len, or convert with a greater --max-length"
        )
    return min(patch_bound(target_tokens, options), capacity - taken)


def longest_segment(
    bundle: Bundle, voice: Voice | UnencodedVoice | None, options: GenerationOptions, *, anchored: bool
) -> int:
    """Maximum number of text tokens in a segment, by `segment_tokens` and by the speech that fits into the KV cache.

    anchored: leave room for a voice of the same length, spoken before, which this segment continues.
    """
    a = bundle.architecture
    by_pace = _seconds_per_token(bundle) / a.patch_seconds
    positions_per_token = 1 + min(by_pace, options.retry_badcase_ratio_threshold)
    transcript = len(bundle.tokenizer(voice.transcript)) if voice and voice.transcript else 0
    room = bundle.manifest.sizes.kv_length - positions(transcript, voice) - _SPARE_PATCHES
    fits = room / positions_per_token
    if options.max_len is not None:
        fits = max(fits, room - options.max_len)
    shortest = min_patches(options) * (2 if anchored else 1)
    fits = min(fits, room + _SPARE_PATCHES - min(shortest, options.max_len or shortest))
    profile = bundle.manifest.speech
    wanted = options.segment_tokens or (profile.longest_tokens if profile else SEGMENT_TOKENS)
    return max(0, min(int(fits / 2 if anchored else fits), wanted))


def min_anchor(bundle: Bundle) -> float:
    """Text tokens whose speech is enough to be continued as the voice of a text."""
    return _ANCHOR_SECONDS / _seconds_per_token(bundle)


def _seconds_per_token(bundle: Bundle) -> float:
    return SECONDS_PER_LETTER if bundle.tokenizer.has_letters_only else SECONDS_PER_TOKEN


@dataclass(frozen=True)
class ExpectedLength:
    """The length that an utterance should have; made by `expected_length` or `upstream_length`."""

    seconds: float | None
    """Expected seconds of speech; None without a `speech.json`."""
    patch_seconds: float
    """Seconds of a patch."""
    long_from: float
    """Patches from which the speech is suspiciously long."""
    short_below: float = 0.0
    """Patches below which speech that has ended is suspiciously short."""
    maximum: float = math.inf
    """Patches at which an attempt is ended, as it is hopeless."""

    def reason(self, patches: int, *, stopped: bool) -> Reason:
        """What is suspicious about speech of so many patches. stopped: whether the stop head has ended it."""
        if patches >= self.long_from:
            return "long"
        return "short" if stopped and patches < self.short_below else ""

    def badness(self, patches: int, *, stopped: bool) -> tuple[bool, float]:
        """A sort key for bad attempts; equal for all if no length is expected.

        Speech that the stop head has not ended is worse than any other, as its real length is unknown. Otherwise the
        distance from the expected length counts, as the logarithm of their ratio.
        """
        if self.seconds is None:
            return False, 0.0
        return not stopped, abs(math.log(patches * self.patch_seconds / self.seconds))


def letters_in(text: str) -> int:
    """Number of letters and digits of a text, from which its expected time follows."""
    return sum(map(str.isalnum, text))


def pace(profile: SpeechProfile, letters: int, seconds: float) -> float:
    """A prompt's time for so many spoken letters, relative to the expected time; 1 for a prompt without letters."""
    if not letters:
        return 1.0
    minimum, maximum = _PACES
    return min(max(seconds / profile.expected_seconds(letters), minimum), maximum)


def expected_length(
    profile: SpeechProfile, letters: int, patch_seconds: float, *, pace: float = 1.0, min_len: int = 0
) -> ExpectedLength:
    """The length of a text of so many letters. pace: see `pace`. min_len: the option; its length is not too long."""
    seconds = profile.expected_seconds(max(letters, 1)) * pace
    longest = max(max(_LONG * seconds, seconds + _MORE) / patch_seconds, min_len + _MORE_THAN_MIN_LEN)
    return ExpectedLength(
        seconds=seconds,
        patch_seconds=patch_seconds,
        long_from=longest,
        short_below=_SHORT * seconds / patch_seconds,
        maximum=math.ceil(max((_ENDED * seconds + _MORE) / patch_seconds, longest)),
    )


def upstream_length(
    tokens: int, patch_seconds: float, ratio: float, context: int, *, min_len: int = 0
) -> ExpectedLength:
    """Upstream's rule: too long from `ratio` patches for each text token on, `context` patches of a prompt counted.

    min_len: the option; unlike upstream's, its length is not too long.
    """
    return ExpectedLength(None, patch_seconds, max(tokens * ratio - context, min_len + _MORE_THAN_MIN_LEN))
