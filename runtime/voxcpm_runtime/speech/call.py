"""A call of `generate` and its kin: what may be given, checked before any work, and the plan that it makes."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from voxcpm_constants.errors import InputError
from voxcpm_runtime.audio.files import AudioSource
from voxcpm_runtime.bundle.opening import Bundle
from voxcpm_runtime.model.driver import Driver, NoiseSource
from voxcpm_runtime.options import GenerationOptions, OptionArguments, checked_options
from voxcpm_runtime.speech.cancellation import CancelToken
from voxcpm_runtime.speech.narrator import Randomness, plan_segments
from voxcpm_runtime.speech.progress import ProgressCallback
from voxcpm_runtime.speech.request import checked_transcript, read_text
from voxcpm_runtime.speech.resuming import KeptSegments
from voxcpm_runtime.text.control import controlled_text
from voxcpm_runtime.text.segments import Segment
from voxcpm_runtime.voices.recordings import Recording, read_recording
from voxcpm_runtime.voices.voice import Voice

VoiceSource = Voice | str | Path
"""A voice, or the path of its file."""


class CallArguments(OptionArguments, total=False):
    """Keyword arguments of `VoxCPM.speak`, beside upstream's names for text and recordings."""

    voice: VoiceSource | None
    """In place of recordings."""
    control: str | None
    """Voice or style in words, such as "warm, slow" (VoxCPM2)."""
    seed: int | None
    """Of the first attempt; by default a fresh one."""
    rng: NoiseSource | None
    """A source of noise in place of a seed."""
    progress: ProgressCallback | None
    """Called after every patch."""
    cancel: CancelToken | None
    """Ends the generation between two Euler steps: then Cancelled is raised."""
    keep_partial: bool
    """Have what was spoken until `cancel`, in place of Cancelled."""
    parallel_segments: int
    """Segments of a long text to speak at once, on a bundle converted for a batch; else one after another."""
    kept: KeptSegments | None
    """Where segments of a long text are kept, and found again."""


@dataclass(frozen=True)
class Call:
    """What is to be spoken, and how."""

    segments: list[Segment]
    voice: Voice | None
    control: str | None
    options: GenerationOptions
    randomness: Randomness
    progress: ProgressCallback | None
    cancel: CancelToken
    keep_partial: bool
    parallel_segments: int
    kept: KeptSegments | None


def read_call(
    bundle: Bundle,
    driver: Driver,
    text: str | None,
    prompt_audio: AudioSource | None,
    prompt_text: str | None,
    reference_audio: AudioSource | None,
    given: Mapping[str, Any],
) -> Call:
    """Check the arguments of one call, then encode its recordings. text: None where it comes later (a session).

    Raises InputError, one line, MissingExtraError for `normalize` without its packages, and Cancelled; everything is
    checked before any audio is encoded.
    """
    options = dict(given)
    named = {name: options.pop(name, None) for name in _OWN}
    checked = checked_options(**options)
    cancel = named["cancel"] or CancelToken()
    if not named["keep_partial"]:
        # Of many utterances with one token, those whose turn has not come are not begun.
        cancel.check()
    randomness = Randomness(_checked_seed(named["seed"], named["rng"]), named["rng"])
    voice = read_voice(
        bundle, named["voice"], prompt_audio, prompt_text, reference_audio, trimmed=checked.trim_silence_vad
    )
    control = named["control"]
    if control is not None:
        continues = voice is not None and voice.prompt is not None
        controlled_text("a", control, generation=bundle.architecture.generation, continues=continues)
    segments = [] if text is None else plan_segments(bundle, text, voice, checked)
    for segment in segments:
        read_text(bundle, segment.text, voice, checked)
    return Call(
        segments=segments,
        voice=voice.encoded(driver) if isinstance(voice, Recording) else voice,
        control=control,
        options=checked,
        randomness=randomness,
        progress=named["progress"],
        cancel=cancel,
        keep_partial=bool(named["keep_partial"]),
        kept=named["kept"],
        parallel_segments=_checked_parallel(named["parallel_segments"]),
    )


def read_voice(
    bundle: Bundle,
    voice: VoiceSource | None,
    prompt_audio: AudioSource | None,
    prompt_text: str | None,
    reference_audio: AudioSource | None,
    *,
    trimmed: bool,
) -> Voice | Recording | None:
    """The voice of a call, its recordings not yet encoded; None for none. Raises InputError."""
    transcript = checked_transcript(prompt_audio is not None, prompt_text)
    if voice is None:
        return read_recording(bundle.architecture, prompt_audio, transcript, reference_audio, trimmed=trimmed)
    if prompt_audio is not None or reference_audio is not None:
        raise InputError("a voice takes the place of prompt and reference: give one of them")
    loaded = voice if isinstance(voice, Voice) else Voice.load(voice)
    loaded.check(bundle.architecture)
    return loaded


_OWN = tuple(CallArguments.__annotations__.keys() - OptionArguments.__annotations__.keys())


def _checked_parallel(count: object) -> int:
    if count is None:
        return 1
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 1:
        raise InputError(f"parallel_segments must be a whole number from 1, got {count!r}")
    return int(count)


def _checked_seed(seed: int | None, rng: NoiseSource | None) -> int | None:
    """The seed, or a fresh one, so that every speech can be made again; None where the caller brings the noise."""
    if rng is not None:
        if seed is not None:
            raise InputError("give a seed or an rng, not both")
        return None
    if seed is None:
        return secrets.randbits(32)
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise InputError(f"seed must be a whole number from 0, got {seed!r}")
    return int(seed)
