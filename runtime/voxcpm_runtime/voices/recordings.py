"""A call's prompt and reference audio: read and checked, then encoded into a voice."""

from __future__ import annotations

import datetime as dt
import hashlib
from dataclasses import dataclass
from pathlib import Path

from voxcpm_constants.architecture import Architecture
from voxcpm_constants.errors import InputError
from voxcpm_runtime.audio.files import Audio, AudioSource, read_audio
from voxcpm_runtime.audio.silence import trim_silence
from voxcpm_runtime.model.driver import Driver
from voxcpm_runtime.text.control import require_reference
from voxcpm_runtime.voices.voice import Turn, Voice, VoiceHeader, latent_space


@dataclass(frozen=True)
class Recording:
    """What a voice is to be made of; it says how much room that takes without any encoding."""

    architecture: Architecture
    transcript: str
    """What is said in the prompt; empty without one."""
    prompt: Audio | None
    """(samples,) at `input_sample_rate`"""
    reference: Audio | None

    @property
    def prompt_patches(self) -> int:
        return self._patches(self.prompt)

    @property
    def reference_patches(self) -> int:
        return self._patches(self.reference)

    def encoded(self, driver: Driver, name: str = "", provenance: dict[str, str] | None = None) -> Voice:
        """The voice."""
        a = self.architecture
        prompt = None if self.prompt is None else driver.encode_prompt(self.prompt)
        header = VoiceHeader(
            name=name,
            generation=a.generation,
            latent_space=latent_space(a),
            sample_rate=a.input_sample_rate,
            turns=() if prompt is None else (Turn(text=self.transcript, patches=len(prompt)),),
            provenance=provenance or {},
        )
        reference = None if self.reference is None else driver.encode_reference(self.reference)
        return Voice(header, prompt, reference)

    def _patches(self, audio: Audio | None) -> int:
        return 0 if audio is None else -(-len(audio) // self.architecture.patch_input_samples)


def read_recording(
    a: Architecture,
    prompt: AudioSource | None,
    transcript: str,
    reference: AudioSource | None,
    *,
    trimmed: bool,
) -> Recording | None:
    """None without any audio. Raises InputError for what is no audio, or is too short."""
    if prompt is None and reference is None:
        return None
    if reference is not None:
        require_reference(a.generation)
    return Recording(
        architecture=a,
        transcript=transcript,
        prompt=_read(prompt, a, trimmed, "prompt audio"),
        reference=_read(reference, a, trimmed, "reference audio"),
    )


def provenance(source: AudioSource | None, what: str) -> dict[str, str]:
    """File name and digest of a recording, as far as it has them, and today's date."""
    if source is None:
        return {}
    said = {"created": dt.datetime.now(dt.timezone.utc).date().isoformat()}
    content = source
    if isinstance(source, str | Path):
        path = Path(source).expanduser()
        said[what] = path.name
        # A pipe has been read, and would not end.
        content = path.read_bytes() if path.is_file() else source
    if isinstance(content, bytes):
        said[f"{what}_sha256"] = hashlib.sha256(content).hexdigest()
    return said


def _read(source: AudioSource | None, a: Architecture, trimmed: bool, what: str) -> Audio | None:
    if source is None:
        return None
    audio = read_audio(source, a.input_sample_rate, least_samples=a.patch_input_samples, what=what)
    return _trimmed(audio, a, what) if trimmed else audio


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
