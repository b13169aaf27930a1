"""One utterance's arguments, checked, and the sequence that they make."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from typing import Protocol

from voxcpm_constants.errors import InputError
from voxcpm_runtime.bundle.opening import Bundle
from voxcpm_runtime.model.sequence import Sequence, build_lead, build_sequence
from voxcpm_runtime.options import GenerationOptions, patch_bound, patch_limit
from voxcpm_runtime.text.letters import spelled, spelled_transcript
from voxcpm_runtime.text.normalization import normalized
from voxcpm_runtime.voices.voice import Voice

_REFERENCE_MARKERS = 2


class VoiceSize(Protocol):
    """A `Voice`, or a `Recording` that will be one."""

    @property
    def transcript(self) -> str: ...
    @property
    def prompt_patches(self) -> int: ...
    @property
    def reference_patches(self) -> int: ...


@dataclass(frozen=True)
class Text:
    """An utterance's words as tokens, checked against the room that the voice leaves them."""

    tokens: list[int]
    """Of the prompt's transcript and the target, tokenised as one."""
    transcript_tokens: list[int]
    """Of the transcript alone."""
    target_tokens: int
    """How many the target has alone."""
    limit: int
    """Most patches; less than upstream's bound where the KV cache is shorter."""
    unknown: str
    """Characters that no token stands for."""


@dataclass(frozen=True)
class Request:
    """What to prefill, and how many patches may follow."""

    sequence: Sequence
    shared: int
    """How many positions, from the first, are the voice's own."""
    voice: Voice | None
    target_tokens: int
    """Tokens of the target text alone."""
    options: GenerationOptions
    limit: int
    """Most patches; less than upstream's bound where the KV cache is shorter."""
    limited_by_cache: bool


def read_text(bundle: Bundle, text: str, voice: VoiceSize | None, options: GenerationOptions) -> Text:
    """The words of one utterance.

    Raises InputError for what cannot be said, or not in the KV cache's length, and MissingExtraError for `normalize`
    without its packages.
    """
    target = spelled(said_text(text, options), bundle.tokenizer)
    transcript = spelled_transcript(voice.transcript if voice else "", bundle.tokenizer)
    # The prompt's transcript as it is given, trailing space or none: it is tokenised together with the target.
    tokens, target_tokens = bundle.tokenizer(transcript + target), len(bundle.tokenizer(target))
    capacity = bundle.manifest.sizes.kv_length
    positions = len(tokens) + 1 + audio_positions(voice)
    return Text(
        tokens=tokens,
        transcript_tokens=bundle.tokenizer(transcript) if transcript else [],
        target_tokens=target_tokens,
        limit=patch_limit(positions, target_tokens, options, capacity),
        unknown=bundle.tokenizer.unknown_characters(transcript + target),
    )


def build_request(bundle: Bundle, text: Text, voice: Voice | None, options: GenerationOptions) -> Request:
    """Characters that the tokeniser does not know are warned of."""
    if text.unknown:
        warnings.warn(f"this voice has no token for {text.unknown!r}, which it will not speak", stacklevel=5)
    a = bundle.architecture
    sequence = build_sequence(
        text.tokens,
        (a.patch_size, a.feat_dim),
        prompt=voice.prompt if voice else None,
        reference=voice.reference if voice else None,
    )
    return Request(
        sequence=sequence,
        shared=_shared(text, voice),
        voice=voice,
        target_tokens=text.target_tokens,
        options=options,
        limit=text.limit,
        limited_by_cache=text.limit < patch_bound(text.target_tokens, options),
    )


def audio_positions(voice: VoiceSize | None) -> int:
    """Positions that a voice's audio takes, markers included."""
    if voice is None:
        return 0
    markers = _REFERENCE_MARKERS if voice.reference_patches else 0
    return voice.prompt_patches + voice.reference_patches + markers


def voice_lead(bundle: Bundle, voice: Voice) -> Sequence:
    """The positions that a voice brings before any text of the caller's."""
    a = bundle.architecture
    transcript = spelled_transcript(voice.transcript, bundle.tokenizer)
    tokens = bundle.tokenizer(transcript) if transcript else []
    return build_lead(tokens, (a.patch_size, a.feat_dim), reference=voice.reference)


def said_text(text: object, options: GenerationOptions) -> str:
    """The target as it is said, on one line and normalised if that is asked for. Raises InputError."""
    target = normalized_text(text, "text")
    if not options.normalize:
        return target
    target = normalized(target)
    if not target.strip():
        raise InputError(
            "nothing is left of the text without its emoji, code and markup; expected words to say"
        )
    return target


def normalized_text(text: object, what: str) -> str:
    """Every run of white space as one space (upstream `core.py`). Raises InputError for a text without words."""
    return re.sub(r"\s+", " ", checked_text(text, what))


def checked_text(text: object, what: str) -> str:
    """The text as it is. Raises InputError for one without words, or that is not valid Unicode."""
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"the {what} is empty; expected something to say")
    _require_unicode(text, what)
    return text


def checked_transcript(has_audio: bool, prompt_text: str | None) -> str:
    """The prompt's transcript; empty without a prompt. Raises InputError for one of the two on its own."""
    if has_audio != (prompt_text is not None):
        given, lacking = ("audio", "transcript") if has_audio else ("transcript", "audio")
        raise InputError(
            f"a prompt is audio and its transcript together: got the {given} without the {lacking}"
        )
    if prompt_text is None:
        return ""
    if not prompt_text.strip():
        raise InputError("the prompt's transcript is empty; it must say what is said in the prompt audio")
    _require_unicode(prompt_text, "prompt's transcript")
    return prompt_text


def _shared(text: Text, voice: Voice | None) -> int:
    """A transcript's last token may be another one when a target follows."""
    if voice is None:
        return 0
    pairs = zip(text.tokens, text.transcript_tokens, strict=False)
    common = next(
        (i for i, (a, b) in enumerate(pairs) if a != b), min(len(text.tokens), len(text.transcript_tokens))
    )
    return common + (voice.reference_patches + _REFERENCE_MARKERS if voice.reference_patches else 0)


def _require_unicode(text: str, what: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(f"the {what} is not valid Unicode; expected UTF-8") from None
