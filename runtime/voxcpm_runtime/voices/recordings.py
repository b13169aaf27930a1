"""The voice of a call: recordings to decode and encode, or an existing voice."""

from __future__ import annotations

import datetime as dt
import hashlib
import os
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from voxcpm_constants.architecture import Architecture
from voxcpm_constants.errors import InputError, system_errors_as, warn
from voxcpm_constants.manifest import Source
from voxcpm_constants.user_folders import DEFAULT_VOICE, user_path
from voxcpm_runtime.argument_types import checked_text, wrong_type
from voxcpm_runtime.audio.pcm import Audio
from voxcpm_runtime.audio.reading import AudioSource, audio_content, read_audio, trim_silence
from voxcpm_runtime.model.driver import Driver
from voxcpm_runtime.text.control import require_references
from voxcpm_runtime.text.lexicon import Lexicon
from voxcpm_runtime.voices.recording_faults import pace_faults, raised
from voxcpm_runtime.voices.store import VoiceStore
from voxcpm_runtime.voices.voice import Turn, Voice, VoiceHeader

_MIN_PEAK = 0.001  # Linear, 33 steps of 16 bits; a recording with a lower peak is silent

VoiceSource = Voice | str | Path  # A voice, the name of a stored or built-in one, or the path of a voice file


@dataclass(frozen=True)
class Recordings:
    """The voice arguments of a call; all None for the checkpoint's own voice.

    Raises InputError for prompt audio without a transcript or the reverse, and for a voice together with recordings.
    """

    prompt: AudioSource | None = None  # Audio to continue
    prompt_text: str | None = None  # Verbatim transcript of the prompt
    reference: AudioSource | None = None  # Audio of the voice to clone (VoxCPM2)
    voice: Voice | None = None  # A voice instead of recordings

    def __post_init__(self) -> None:
        if (self.prompt is None) != (self.prompt_text is None):
            given, lacking = ("audio", "transcript") if self.prompt_text is None else ("transcript", "audio")
            raise InputError(
                f"a prompt needs both audio and transcript: got the {given} without the {lacking}"
            )
        if self.prompt_text is not None:
            checked_text(self.prompt_text, "prompt's transcript", "prompt_text")
        if self.voice is not None and (self.prompt is not None or self.reference is not None):
            raise InputError("a voice replaces prompt and reference: give one or the other")

    @classmethod
    def for_new_voice(
        cls, audio: AudioSource | None, transcript: str | None, reference: AudioSource | None
    ) -> Recordings:
        """Recordings for a new voice; audio without a transcript is a reference.

        Raises InputError without a recording, and for two references.
        """
        if transcript is None and audio is not None:
            if reference is not None:
                raise InputError("got two references: audio without a transcript is one, too")
            audio, reference = None, audio
        recordings = cls(audio, transcript, reference)
        if audio is None and reference is None:
            raise InputError("a voice needs a recording: audio with its transcript, or a reference")
        return recordings

    def with_voice(self, source: VoiceSource | None) -> Recordings:
        """A copy with a voice: a Voice, a name for `VoiceStore.load`, or a path. None and "default" are no-ops.

        Raises InputError for a voice together with recordings, an unknown name, and a file that is not a voice.
        """
        if source is None or (isinstance(source, str) and source == DEFAULT_VOICE):
            return self
        if isinstance(source, str):
            source = VoiceStore().load(source)
        elif isinstance(source, os.PathLike):
            source = Voice.load(source)
        elif not isinstance(source, Voice):
            raise wrong_type(source, "voice", "a Voice, its name, or the path of its file")
        return replace(self, voice=source)

    @property
    def is_empty(self) -> bool:
        """Whether the call names no voice."""
        return self.prompt is None and self.reference is None and self.voice is None

    @property
    def continues(self) -> bool:
        """Whether there is a prompt to continue."""
        return self.prompt is not None or (self.voice is not None and self.voice.prompt is not None)

    @property
    def lexicon(self) -> Lexicon:
        """The lexicon of the voice."""
        return self.voice.header.lexicon if self.voice else {}

    def files(self) -> list[str | Path]:
        """The files of the voice."""
        given = (self.prompt, self.reference, self.voice and self.voice.path)
        return [source for source in given if isinstance(source, str | Path)]

    def check_files(self) -> None:
        """Raises InputError if the file of a recording does not exist; `read` checks everything else."""
        for what, source in (("prompt audio", self.prompt), ("reference audio", self.reference)):
            if isinstance(source, str | Path) and not user_path(source).exists():
                raise InputError(f"{what} {source}: no such file")

    def read(self, a: Architecture, *, trimmed: bool) -> Voice | UnencodedVoice | None:
        """The voice; recordings are decoded and checked, but not yet encoded. None for the checkpoint's own voice.

        trimmed: trim silence at both ends of the recordings. Raises InputError for a recording that is not audio, is
        silent, too short or too long, for a reference before VoxCPM2, and for a voice of another AudioVAE. Warns of a
        recording that is very quiet, whose channels cancel each other, or that does not fit its transcript.
        """
        if self.voice is not None:
            self.voice.check(a)
            return self.voice
        return None if self.is_empty else self.decode(a, trimmed=trimmed)

    def decode(self, a: Architecture, *, trimmed: bool) -> UnencodedVoice:
        """The recordings, decoded and checked. Arguments and errors: `read`."""
        if self.reference is not None:
            require_references(a, "a reference voice", "give a prompt")
        prompt, faults = _read_recording(self.prompt, a, trimmed, "prompt audio")
        reference, others = _read_recording(self.reference, a, trimmed, "reference audio")
        faults += others
        if prompt is not None:
            faults += pace_faults(prompt, a.input_sample_rate, self.prompt_text or "")
        for fault in faults:
            warn(fault)
        return UnencodedVoice(a, self.prompt_text or "", prompt, reference, tuple(faults))

    def self_contained(self) -> Recordings:
        """A copy with the content of each file instead of its path, for another machine.

        Raises InputError for a file that cannot be read.
        """

        def content(source: AudioSource | None, what: str) -> AudioSource | None:
            return audio_content(source, f"{what} {source}") if isinstance(source, str | Path) else source

        prompt, reference = content(self.prompt, "prompt audio"), content(self.reference, "reference audio")
        return replace(self, prompt=prompt, reference=reference)

    def provenance(self, source: Source) -> dict[str, str]:
        """File names and digests of the recordings, if known, today's date, and the bundle's checkpoint."""
        said = {
            "checkpoint": source.checkpoint,
            "created": dt.datetime.now(dt.timezone.utc).date().isoformat(),
        }
        for what, recording in (("prompt", self.prompt), ("reference", self.reference)):
            content = recording
            if isinstance(recording, str | Path):
                path = user_path(recording)
                said[what] = path.name
                # A pipe was read before; a second read would block forever.
                content = path.read_bytes() if path.is_file() else None
            if isinstance(content, bytes):
                said[f"{what}_sha256"] = hashlib.sha256(content).hexdigest()
        return said

    def digests(self) -> dict[str, str | None]:
        """The parts of a cache key: SHA-256 of each file and of the voice, and the transcript.

        Raises InputError for an audio file that cannot be read.
        """
        parts: dict[str, str | None] = {"prompt": None, "prompt_text": self.prompt_text, "reference": None}
        for what, source in (("prompt", self.prompt), ("reference", self.reference)):
            if source is not None:
                content = audio_content(source, f"{what} audio {source!s}")
                parts[what] = hashlib.sha256(content).hexdigest()
        return parts if self.voice is None else {**parts, "voice": self.voice.digest}


@dataclass(frozen=True)
class UnencodedVoice:
    """Decoded recordings of a voice, which already give its length in patches."""

    architecture: Architecture
    transcript: str  # Transcript of the prompt; empty without a prompt
    prompt: Audio | None  # Prompt audio (samples,) at `input_sample_rate`
    reference: Audio | None  # Reference audio (samples,) at `input_sample_rate`
    faults: tuple[str, ...] = ()  # What is wrong with the recordings

    @property
    def prompt_patches(self) -> int:
        """Number of patches of the prompt; 0 without one."""
        return self._patches(self.prompt)

    @property
    def reference_patches(self) -> int:
        """Number of patches of the reference; 0 without one."""
        return self._patches(self.reference)

    def encode(
        self, driver: Driver, name: str = "", provenance: dict[str, str] | None = None, lexicon: Lexicon | None = None
    ) -> Voice:  # fmt: skip
        """The voice, encoded by the AudioVAE encoder of `driver`."""
        a = self.architecture
        prompt = None if self.prompt is None else driver.encode_prompt(self.prompt)
        reference = None if self.reference is None else driver.encode_reference(self.reference)
        turns = () if prompt is None else (Turn(text=self.transcript, patches=len(prompt)),)
        origin, said = provenance or {}, dict(lexicon or {})
        header = VoiceHeader.of(a, name=name, turns=turns, provenance=origin, lexicon=said)
        return Voice(header, prompt, reference, faults=self.faults)

    def _patches(self, audio: Audio | None) -> int:
        return 0 if audio is None else -(-len(audio) // self.architecture.patch_input_samples)


@system_errors_as(InputError)
def encoded(voice: Voice | UnencodedVoice | None, driver: Driver) -> Voice | None:
    """The voice, with recordings encoded by `driver`. Raises InputError for a system error, such as no memory."""
    return voice.encode(driver) if isinstance(voice, UnencodedVoice) else voice


def _read_recording(
    source: AudioSource | None, a: Architecture, trimmed: bool, what: str
) -> tuple[Audio | None, list[str]]:
    if source is None:
        return None, []
    rate, minimum = a.input_sample_rate, a.patch_input_samples
    faults: list[str] = []
    audio = read_audio(source, rate, min_samples=minimum, what=what, faults=faults)
    # Ignore DC offset.
    peak = float(np.abs(audio - audio.mean()).max())
    if peak < _MIN_PEAK:
        raise InputError(
            f"{what}: expected speech, but it is silent (peak {peak:.2g}, minimum {_MIN_PEAK:g})"
        )
    if trimmed and len(audio := trim_silence(audio, rate)) < minimum:
        raise InputError(
            f"{what}: {len(audio) / rate:.3f} s long after trimming silence, but the minimum is one patch, "
            f"{minimum / rate:.3f} s"
        )
    audio, too_quiet = raised(audio, what)
    return audio, faults + too_quiet
