"""Room in the KV cache: how many positions a voice and a text take, and how much speech fits after them."""

from __future__ import annotations

from typing import Protocol

from voxcpm_constants.errors import InputError
from voxcpm_runtime.bundle.opening import Bundle
from voxcpm_runtime.options import DEFAULT_MAX_LEN, SEGMENT_TOKENS, GenerationOptions

SECONDS_PER_TOKEN = 0.5
"""Upper estimate of the time that a token takes to say, slow speech included; it gives the room that a text needs."""
SECONDS_PER_LETTER = 0.12
"""The same for a vocabulary of letters."""
_ANCHOR_SECONDS = 5.0
"""Speech, by the estimates above, that is enough to be continued as the voice of a text; a heading alone is not."""
_AUDIO_START_POSITIONS = 1
_SPARE_PATCHES = 10
"""Patches of silence that speech may have in addition to its text."""
_REFERENCE_MARKERS = 2


class VoiceSize(Protocol):
    """The size of a voice: a `Voice`, or an `UnencodedVoice`, which will become one."""

    @property
    def transcript(self) -> str:
        """What is said in the prompt."""

    @property
    def prompt_patches(self) -> int:
        """Number of patches of the prompt."""

    @property
    def reference_patches(self) -> int:
        """Number of patches of the reference."""


def reference_positions(voice: VoiceSize) -> int:
    """Positions that a voice's reference takes, its two markers included."""
    return voice.reference_patches + _REFERENCE_MARKERS if voice.reference_patches else 0


def positions(text_tokens: int, voice: VoiceSize | None) -> int:
    """Positions before the first generated patch: text tokens, audio start, and the voice's audio with its markers."""
    before = text_tokens + _AUDIO_START_POSITIONS
    return before if voice is None else before + voice.prompt_patches + reference_positions(voice)


def patch_bound(target_tokens: int, options: GenerationOptions) -> int:
    """Largest number of patches for a text of `target_tokens` tokens, KV cache aside (upstream `_generate`).

    Unlike upstream's bound, it is never below `min_patches`.
    """
    by_ratio = int(target_tokens * options.retry_badcase_ratio_threshold + 10)
    return max(min(by_ratio, options.max_len or DEFAULT_MAX_LEN), min_patches(options))


def min_patches(options: GenerationOptions) -> int:
    """Number of patches of the shortest segment: upstream first reads the stop head at index `min_len` + 1."""
    return min(options.min_len + 2, options.max_len or options.min_len + 2)


def patch_limit(taken: int, target_tokens: int, options: GenerationOptions, capacity: int) -> int:
    """Largest number of patches for a text if `taken` of the KV cache's `capacity` positions are already in use.

    Raises InputError if not even the shortest speech fits.
    """
    wanted, minimum = patch_bound(target_tokens, options), min_patches(options)
    if taken + minimum > capacity:
        raise InputError(
            f"text, prompt and earlier segments take {taken} positions and the speech at least {minimum}: "
            f"{taken + minimum} needed, but the KV cache has {capacity}; shorten the text or the prompt, "
            "lower min_len, or convert with a greater --max-length"
        )
    return min(wanted, capacity - taken)


def longest_segment(
    bundle: Bundle, voice: VoiceSize | None, options: GenerationOptions, *, anchored: bool
) -> int:
    """Largest number of text tokens in a segment, by `segment_tokens` and by the speech that fits into the KV cache.

    anchored: leave room for a voice of the same length, spoken before, which this segment continues.
    """
    a = bundle.architecture
    positions_per_token = 1 + min(
        _seconds_per_token(bundle) / a.patch_seconds, options.retry_badcase_ratio_threshold
    )
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
