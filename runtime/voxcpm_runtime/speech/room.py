"""The room that text and voice take: positions in the KV cache, and estimates of seconds and letters."""

from __future__ import annotations

from voxcpm_runtime.bundle.opening import Bundle
from voxcpm_runtime.voices.recordings import UnencodedVoice
from voxcpm_runtime.voices.voice import Voice

MIN_SEGMENT_TOKENS = 8
"""Text tokens that a segment may always have, even if their speech may not fit in the KV cache."""
CHARACTERS_PER_TOKEN = 16
"""A text with more characters per token of the longest segment is too long for one, without counting its tokens."""
SPARE_PATCHES = 10  # Patches of silence to allow for in addition to the text
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


def min_anchor(bundle: Bundle) -> float:
    """Number of text tokens whose speech is long enough to serve as the voice of later segments."""
    return _ANCHOR_SECONDS / seconds_per_token(bundle)


def seconds_per_token(bundle: Bundle) -> float:
    """Upper estimate of the duration of a text token."""
    return SECONDS_PER_LETTER if bundle.tokenizer.has_letters_only else SECONDS_PER_TOKEN


def count_letters(text: str) -> int:
    """Number of letters and digits of a text, from which its expected duration is computed."""
    return sum(map(str.isalnum, text))
