"""The length budget: what fits in the KV cache, how long a segment may be, and estimates of seconds and letters."""

from __future__ import annotations

import math

from voxcpm_constants.errors import InputError
from voxcpm_runtime.bundle.opening import Bundle
from voxcpm_runtime.options import SEGMENT_TOKENS
from voxcpm_runtime.speech.plan import Plan
from voxcpm_runtime.speech.results import PlannedSegment
from voxcpm_runtime.text.control import with_control
from voxcpm_runtime.text.normalization import spelled
from voxcpm_runtime.text.segments import has_blank_lines
from voxcpm_runtime.voices.recordings import UnencodedVoice
from voxcpm_runtime.voices.voice import Voice

MIN_SEGMENT_TOKENS = 8
"""Text tokens that a segment may always have, even if their speech may not fit in the KV cache."""
_CHARACTERS_PER_TOKEN = 16
"""A text with more characters per token of the longest segment is too long for one, without counting its tokens."""
_SPARE_PATCHES = 10  # Patches of silence to allow for in addition to the text
# Upper estimates of the duration of a token, for slow speech: a text token, and a single letter.
SECONDS_PER_TOKEN, SECONDS_PER_LETTER = 0.5, 0.12
_ANCHOR_SECONDS = 5.0
"""Estimated seconds of speech that later segments need as their voice; a heading alone is too short."""

AnyVoice = Voice | UnencodedVoice


def positions(text_tokens: int, voice: AnyVoice | None) -> int:
    """Positions before the first generated patch: text tokens, audio start, and the voice's audio with markers."""
    before = text_tokens + 1
    return before if voice is None else before + voice.prompt_patches + reference_positions(voice)


def reference_positions(voice: AnyVoice) -> int:
    """Positions that a voice's reference takes, including its two markers."""
    return voice.reference_patches + 2 if voice.reference_patches else 0


def patch_limit(plan: Plan, segment: PlannedSegment, voice: AnyVoice | None, continued: int = 0) -> int:
    """Maximum number of patches of a segment in a voice. Raises InputError if not even the shortest speech fits.

    continued: patches to reserve for a voice that is not spoken yet.
    """
    used = positions(len(segment.tokens), voice) + continued
    min_patches, capacity = plan.options.min_patches, plan.bundle.manifest.sizes.kv_length
    if used + min_patches > capacity:
        raise InputError(
            f"text, prompt and earlier segments take {used} positions and the speech at least {min_patches}: "
            f"{used + min_patches} needed, but the KV cache has {capacity}; shorten the text or the prompt, "
            "lower min_len, or convert with a larger --max-length"
        )
    return min(plan.options.patch_bound(segment.target_tokens), capacity - used)


def max_segment_tokens(plan: Plan, *, anchored: bool) -> int:
    """Maximum number of text tokens in a segment, by `segment_tokens` and by the speech that fits in the KV cache.

    anchored: leave room for an equally long segment that this one continues.
    """
    options, voice, manifest = plan.options, plan.voice, plan.bundle.manifest
    by_pace = seconds_per_token(plan.bundle) / plan.bundle.architecture.patch_seconds
    transcript = len(plan.bundle.tokenizer(voice.transcript)) if voice and voice.transcript else 0
    if plan.description:
        transcript += len(plan.bundle.tokenizer(with_control("", plan.description)))
    room = manifest.sizes.kv_length - positions(transcript, voice) - _SPARE_PATCHES
    fits = room / (1 + min(by_pace, options.retry_badcase_ratio_threshold))
    if options.max_len is not None:
        fits = max(fits, room - options.max_len)
    min_patches = options.min_patches * (2 if anchored else 1)
    fits = min(fits, room + _SPARE_PATCHES - min(min_patches, options.max_len or min_patches))
    by_profile = manifest.speech.longest_tokens if manifest.speech else SEGMENT_TOKENS
    return max(0, min(int(fits / 2 if anchored else fits), options.segment_tokens or by_profile))


def fits_alone(plan: Plan, text: str, *, anchored: bool = False) -> bool:
    """Whether the text is a paragraph short enough for one segment. anchored: see `max_segment_tokens`."""
    max_tokens = max_segment_tokens(plan, anchored=anchored)
    maximum = max(max_tokens, MIN_SEGMENT_TOKENS) * _CHARACTERS_PER_TOKEN
    if len(text) > maximum or has_blank_lines(text):
        return False
    return count_tokens(plan, text, max_tokens) <= max_tokens


def count_tokens(plan: Plan, text: str, target: int) -> int:
    """Number of tokens of a text; more than `target` also if it is expected to exceed `longest_seconds`."""
    tokenizer, profile = plan.bundle.tokenizer, plan.bundle.manifest.speech
    try:
        said = spelled(plan.pronounced(text), tokenizer)
    except InputError:  # Nothing to say
        return 0
    tokens = len(tokenizer(said))
    if profile is None or plan.options.segment_tokens is not None:
        return tokens
    share = profile.expected_seconds(count_letters(said)) / profile.longest_seconds
    return max(tokens, math.ceil(target * share))


def min_anchor(bundle: Bundle) -> float:
    """Number of text tokens whose speech is long enough to serve as the voice of later segments."""
    return _ANCHOR_SECONDS / seconds_per_token(bundle)


def seconds_per_token(bundle: Bundle) -> float:
    """Upper estimate of the duration of a text token."""
    return SECONDS_PER_LETTER if bundle.tokenizer.has_letters_only else SECONDS_PER_TOKEN


def count_letters(text: str) -> int:
    """Number of letters and digits of a text, from which its expected duration is computed."""
    return sum(map(str.isalnum, text))
