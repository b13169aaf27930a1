"""A voice that can be saved: the latents of its recordings and what is said in them, in one portable file.

The file is in the safetensors format: tensors `prompt` and `reference` (patches, frames, latent_dim), float32, and a
JSON document under `voice` in its metadata. It depends on the AudioVAE only, and so serves every bundle of a
generation, in any precision and on any backend.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from voxcpm_constants.architecture import Architecture
from voxcpm_constants.errors import InputError, first_line, first_wrong_field, os_reason, system_errors_as
from voxcpm_runtime.model.sequence import Latents
from voxcpm_runtime.storage.whole_file import whole_file

SUFFIX = ".voice"
_METADATA_KEY = "voice"
_PROMPT, _REFERENCE = "prompt", "reference"


class Turn(BaseModel):
    """One stretch of the prompt: what is said in it, and its length in patches."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    text: str
    patches: int


class VoiceHeader(BaseModel):
    """The metadata of a voice: everything except for its latents."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: int = 1
    name: str
    generation: str
    """`architecture.generation`"""
    latent_space: str
    """Digest of the AudioVAE's configuration: equal where latents mean the same."""
    sample_rate: int
    """Hz of the audio that was encoded."""
    turns: tuple[Turn, ...] = ()
    """Turns of the prompt: first the recording, then what was said since; empty without a prompt."""
    provenance: dict[str, str] = {}
    """Origin of the voice: file names and digests of the recordings, bundle, date."""


@dataclass(frozen=True, eq=False)
class Voice:
    """A voice to give as `voice` instead of recordings; make one with `VoxCPM.create_voice` or `Voice.load`."""

    header: VoiceHeader
    prompt: Latents | None = None
    """Patches to continue (patches, frames, latent_dim)."""
    reference: Latents | None = None
    """Patches of a voice to speak with (patches, frames, latent_dim), VoxCPM2 only."""
    path: Path | None = None
    """The file that the voice was read from or written to."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Voice) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    @property
    def name(self) -> str:
        """The name under which the voice is saved; may be empty."""
        return self.header.name

    @property
    def transcript(self) -> str:
        """What is said in the prompt."""
        return "".join(turn.text for turn in self.header.turns)

    @property
    def prompt_patches(self) -> int:
        """Number of patches of the prompt; 0 without one."""
        return 0 if self.prompt is None else len(self.prompt)

    @property
    def reference_patches(self) -> int:
        """Number of patches of the reference; 0 without one."""
        return 0 if self.reference is None else len(self.reference)

    @cached_property
    def digest(self) -> str:
        """SHA-256 over latent space, transcript and latents, but not over name and provenance."""
        whole = hashlib.sha256(f"{self.header.latent_space}|{self.transcript}".encode())
        for name, latents in self._tensors().items():
            whole.update(name.encode() + latents.tobytes())
        return whole.hexdigest()

    def extended(self, text: str, latents: Latents, *, window_patches: int | None = None) -> Voice:
        """The voice with one more turn in its prompt: `text` and its patches (patches, frames, latent_dim).

        As in upstream's `merge_prompt_cache`, the text is joined verbatim, so it must end with the space that separates
        it from the next text. window_patches: largest length of the prompt; the oldest turns are dropped first, but the
        original recording stays. If the new turn does not fit even then, the voice is returned unchanged.
        """
        turns = [*self.header.turns, Turn(text=text, patches=len(latents))]
        prompt = latents if self.prompt is None else np.concatenate([self.prompt, latents])
        kept = 0 if self.prompt is None else 1
        while window_patches is not None and len(prompt) > window_patches and len(turns) > kept + 1:
            start = turns[0].patches if kept else 0
            prompt = np.concatenate([prompt[:start], prompt[start + turns[kept].patches :]])
            del turns[kept]
        if window_patches is not None and len(prompt) > window_patches:
            return self
        header = self.header.model_copy(update={"turns": tuple(turns)})
        return replace(self, header=header, prompt=prompt, path=None)

    def check(self, a: Architecture) -> None:
        """Raises InputError if the voice was made for another AudioVAE than the bundle's."""
        if self.header.latent_space != latent_space(a):
            raise InputError(
                f"voice {self.name} was made for another AudioVAE ({self.header.generation}, "
                f"{self.header.sample_rate} Hz) than this bundle's ({a.generation}, {a.input_sample_rate} Hz); "
                "make it again from its recording"
            )

    @system_errors_as(InputError)
    def save(self, path: str | Path) -> Voice:
        """Write the voice to a file, completely or not at all, and return it with its path. Raises InputError."""
        path = Path(path).expanduser()
        metadata = {_METADATA_KEY: self.header.model_dump_json()}
        try:
            with whole_file(path) as file:
                file.write(save(self._tensors(), metadata))
        except OSError as error:
            raise InputError(f"{path}: cannot be written ({os_reason(error)})") from None
        return replace(self, path=path)

    @classmethod
    @system_errors_as(InputError)
    def load(cls, path: str | Path) -> Voice:
        """Read a voice from its file. Raises InputError for a file that is missing or no voice."""
        path = Path(path).expanduser()
        if not path.is_file():
            raise InputError(f"voice {path}: no such file")
        try:
            header, tensors = _read(path)
        except (OSError, ValueError, KeyError) as error:
            raise InputError(
                f"voice {path}: expected a voice file, but it cannot be read ({first_line(error)})"
            ) from None
        return cls(header, tensors.get(_PROMPT), tensors.get(_REFERENCE), path)

    def _tensors(self) -> dict[str, Latents]:
        given = {_PROMPT: self.prompt, _REFERENCE: self.reference}
        return {
            name: np.ascontiguousarray(latents, np.float32)
            for name, latents in given.items()
            if latents is not None
        }


def latent_space(a: Architecture) -> str:
    """A digest that is equal for two architectures whose latents mean the same."""
    parts = f"{a.generation}|{a.patch_size}|{a.feat_dim}|{a.audio_vae_config.model_dump_json()}"
    return hashlib.sha256(parts.encode()).hexdigest()[:16]


def _read(path: Path) -> tuple[VoiceHeader, dict[str, Any]]:
    try:
        with safe_open(path, framework="numpy") as file:
            header = VoiceHeader.model_validate_json((file.metadata() or {})[_METADATA_KEY])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
    except SafetensorError as error:
        raise ValueError(str(error)) from None
    except ValidationError as error:
        raise ValueError(first_wrong_field(error)) from None
    for name, latents in tensors.items():
        if (
            latents.dtype != np.float32
            or latents.ndim != 3
            or not len(latents)
            or not np.isfinite(latents).all()
        ):
            raise ValueError(f"{name} is not finite float32 (patches, frames, latent_dim)")
    said = sum(turn.patches for turn in header.turns)
    if not tensors or said != len(tensors.get(_PROMPT, ())):
        raise ValueError(f"its turns have {said} patches, its prompt {len(tensors.get(_PROMPT, ()))}")
    return header, tensors
