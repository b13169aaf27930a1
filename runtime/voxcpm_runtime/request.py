"""A call's arguments, checked, and the sequence that they make."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass

from voxcpm_constants.architecture import Architecture
from voxcpm_constants.errors import InputError
from voxcpm_runtime.audio_file import Audio, AudioSource, read_audio
from voxcpm_runtime.bundle import Bundle
from voxcpm_runtime.control import require_reference
from voxcpm_runtime.driver import Driver
from voxcpm_runtime.letters import spelled, spelled_transcript
from voxcpm_runtime.options import GenerationOptions, patch_bound, patch_limit
from voxcpm_runtime.sequence import Sequence, build_sequence
from voxcpm_runtime.silence import trim_silence
from voxcpm_runtime.text_normalization import normalized

_REFERENCE_MARKERS = 2


@dataclass(frozen=True)
class Request:
    """What to prefill, and how many patches may follow."""

    sequence: Sequence
    target_tokens: int
    """Tokens of the target text alone."""
    options: GenerationOptions
    limit: int
    """Most patches; less than upstream's bound where the KV cache is shorter."""
    limited_by_cache: bool


def build_request(
    bundle: Bundle,
    driver: Driver,
    text: str,
    prompt_audio: AudioSource | None,
    prompt_text: str | None,
    reference_audio: AudioSource | None,
    options: GenerationOptions,
) -> Request:
    """Check the arguments of one generation and encode its audio.

    Raises InputError, one line, and MissingExtraError for `normalize` without its packages; everything is checked
    before the audio is encoded. Characters that the tokeniser does not know are warned of.
    """
    a = bundle.architecture
    target = spelled(_target(text, options), bundle.tokenizer)
    transcript = spelled_transcript(_transcript(prompt_audio is not None, prompt_text), bundle.tokenizer)
    if reference_audio is not None:
        require_reference(a.architecture)
    # The prompt's transcript as it is given, trailing space or none: it is tokenised together with the target.
    text_tokens, target_tokens = bundle.tokenizer(transcript + target), len(bundle.tokenizer(target))
    capacity = bundle.manifest.sizes.kv_length
    # First without the audio: a text that cannot fit is refused whatever the audio is.
    patch_limit(len(text_tokens) + 1, target_tokens, options, capacity)
    prompt = _read(prompt_audio, bundle, options, "prompt audio")
    reference = _read(reference_audio, bundle, options, "reference audio")
    positions = len(text_tokens) + 1 + _patches(prompt, bundle)
    positions += 0 if reference is None else _patches(reference, bundle) + _REFERENCE_MARKERS
    limit = patch_limit(positions, target_tokens, options, capacity)
    if unknown := bundle.tokenizer.unknown_characters(transcript + target):
        warnings.warn(f"this voice has no token for {unknown!r}, which it will not speak", stacklevel=4)
    sequence = build_sequence(
        text_tokens,
        (a.patch_size, a.feat_dim),
        prompt=None if prompt is None else driver.encode_prompt(prompt),
        reference=None if reference is None else driver.encode_reference(reference),
    )
    return Request(sequence, target_tokens, options, limit, limit < patch_bound(target_tokens, options))


def normalized_text(text: object, what: str) -> str:
    """Every run of white space as one space (upstream `core.py`). Raises InputError for a text without words."""
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"the {what} is empty; expected something to say")
    _require_unicode(text, what)
    return re.sub(r"\s+", " ", text)


def _target(text: object, options: GenerationOptions) -> str:
    target = normalized_text(text, "text")
    if not options.normalize:
        return target
    target = normalized(target)
    if not target.strip():
        raise InputError(
            "nothing is left of the text without its emoji, code and markup; expected words to say"
        )
    return target


def _transcript(has_audio: bool, prompt_text: str | None) -> str:
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


def _require_unicode(text: str, what: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(f"the {what} is not valid Unicode; expected UTF-8") from None


def _read(source: AudioSource | None, bundle: Bundle, options: GenerationOptions, what: str) -> Audio | None:
    a = bundle.architecture
    if source is None:
        return None
    audio = read_audio(source, a.input_sample_rate, least_samples=a.patch_input_samples, what=what)
    return _trimmed(audio, a, what) if options.trim_silence_vad else audio


def _trimmed(audio: Audio, a: Architecture, what: str) -> Audio:
    if not audio.any():
        raise InputError(
            f"{what}: silence throughout, of which nothing is left when trimmed; expected speech"
        )
    trimmed = trim_silence(audio, a.input_sample_rate)
    if len(trimmed) < a.patch_input_samples:
        left, least = len(trimmed) / a.input_sample_rate, a.patch_input_samples / a.input_sample_rate
        raise InputError(
            f"{what}: {left:.3f} s are left without its silence, but one patch, {least:.3f} s, is the least"
        )
    return trimmed


def _patches(audio: Audio | None, bundle: Bundle) -> int:
    return 0 if audio is None else -(-len(audio) // bundle.architecture.patch_input_samples)
