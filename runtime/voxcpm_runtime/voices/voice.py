"""A saved voice: the latents of its recordings and their transcript, in one portable file.

The file is in the safetensors format: tensors `prompt` and `reference` (patches, frames, latent_dim), float32, and in
the metadata a JSON document under `voice` and a digest of everything under `sha256`. It depends only on the AudioVAE,
so it works with every bundle that has the same one, in any precision and on any backend.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, Field, ValidationError

from voxcpm_constants.architecture import Architecture
from voxcpm_constants.bounds import MAX_VOICE_BYTES
from voxcpm_constants.errors import (
    InputError,
    first_line,
    first_wrong_field,
    naming_errors,
    os_reason,
    system_errors_as,
)
from voxcpm_constants.json_files import read_bounded
from voxcpm_constants.tensor_files import dump_tensors, load_tensors
from voxcpm_runtime.argument_types import (
    file_argument,
    path_argument,
    shown,
    text_argument,
    valid_unicode,
    whole_number,
    wrong_type,
)
from voxcpm_runtime.model.sequence import Latents
from voxcpm_runtime.storage.atomic_file import atomic_file
from voxcpm_runtime.text.control import require_references

SUFFIX = ".voice"
FORMAT = 1
_METADATA_KEY = "voice"
_PROMPT, _REFERENCE = "prompt", "reference"


class Turn(BaseModel, extra="forbid", frozen=True):
    """One part of the prompt: its text, and its length in patches."""

    text: str
    patches: int = Field(ge=1)


class VoiceHeader(BaseModel, extra="forbid", frozen=True):
    """The metadata of a voice: everything except its latents."""

    format: int = Field(default=FORMAT, strict=True)
    name: str
    generation: str  # `architecture.generation`
    latent_space: str  # Digest of the AudioVAE's configuration: equal if latents are compatible
    sample_rate: int = Field(gt=0)  # Hz of the audio that was encoded
    turns: tuple[Turn, ...] = ()
    """Turns of the prompt: first the recording, then later speech; empty without a prompt."""
    lexicon: dict[str, str] = {}  # What this voice says differently than it is written
    provenance: dict[str, str] = {}
    """Origin of the voice: file names and digests of the recordings, bundle, date."""

    @classmethod
    def of(cls, a: Architecture, **given: Any) -> VoiceHeader:
        """The header of a voice for this AudioVAE. given: the other fields."""
        space = latent_space(a)
        return cls(generation=a.generation, latent_space=space, sample_rate=a.input_sample_rate, **given)


@dataclass(frozen=True, eq=False)
class Voice:
    """A voice, passed as `voice` instead of recordings; from `VoxCPM.create_voice` or `Voice.load`."""

    header: VoiceHeader
    prompt: Latents | None = None  # Patches to continue (patches, frames, latent_dim)
    reference: Latents | None = None
    """Patches of a reference recording (patches, frames, latent_dim); VoxCPM2 only."""
    path: Path | None = None  # The file that the voice was read from or written to
    faults: tuple[str, ...] = ()  # What is wrong with the recordings that it was just made from; not saved

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Voice) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return (
            f"Voice(name={shown(self.name)}, generation={shown(self.header.generation)}, "
            f"prompt_patches={self.prompt_patches}, reference_patches={self.reference_patches})"
        )

    @property
    def name(self) -> str:
        """The name under which the voice is saved; may be empty."""
        return self.header.name

    @property
    def transcript(self) -> str:
        """The prompt's transcript."""
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

        As in upstream's `merge_prompt_cache`, texts are concatenated, so each must end with a space if the next one
        needs it. window_patches: maximum length of the prompt; the oldest turns are dropped first, but never the
        recording. If the new turn still does not fit, the voice is returned unchanged.
        """
        valid_unicode(text_argument(text, "text"), "text")
        given = np.asarray(latents)
        shapes = {known.shape[1:] for known in self._tensors().values()} or {given.shape[1:]}
        if given.dtype.kind != "f" or given.ndim != 3 or not len(given) or given.shape[1:] not in shapes:
            raise wrong_type(
                latents, "latents", "patches (patches, frames, latent_dim), as Speech.latents are"
            )
        turns = [*self.header.turns, Turn(text=text, patches=len(latents))]
        prompt = latents if self.prompt is None else np.concatenate([self.prompt, latents])
        if window_patches is not None:
            maximum = whole_number(window_patches, "window_patches", 0, "patches")
            protected = 0 if self.prompt is None else 1
            start = turns[0].patches if protected else 0
            while len(prompt) > maximum and len(turns) > protected + 1:
                prompt = np.concatenate([prompt[:start], prompt[start + turns.pop(protected).patches :]])
            if len(prompt) > maximum:
                return self
        header = self.header.model_copy(update={"turns": tuple(turns)})
        return replace(self, header=header, prompt=prompt, path=None)

    def check(self, a: Architecture) -> None:
        """Raises InputError for another AudioVAE, patches of another shape, or a reference before VoxCPM2."""
        if self.header.latent_space != latent_space(a):
            raise InputError(
                f"voice {self.name} was made for another AudioVAE ({self.header.generation}, "
                f"{self.header.sample_rate} Hz) than this bundle's ({a.generation}, {a.input_sample_rate} Hz); "
                "make it again from its recording, or use another voice"
            )
        if self.reference is not None:
            require_references(a, "a reference voice", "use a voice with a prompt")
        for name, latents in self._tensors().items():
            if latents.shape[1:] != (a.patch_size, a.feat_dim):
                raise InputError(
                    f"voice {self.name}: expected patches of {(a.patch_size, a.feat_dim)} in its {name}, got "
                    f"{latents.shape[1:]}; make it again from its recording"
                )

    @system_errors_as(InputError)
    def save(self, path: str | Path, *, overwrite: bool = False) -> Voice:
        """Write the voice atomically, and return it with its path. overwrite: also replace a read-only file."""
        path = file_argument(path, "path")
        metadata = {_METADATA_KEY: self.header.model_dump_json()}
        with naming_errors(f"{path}: cannot be written"), atomic_file(path, overwrite=overwrite) as file:
            file.write(dump_tensors(self._tensors(), metadata))
        return replace(self, path=path)

    @classmethod
    @system_errors_as(InputError)
    def load(cls, path: str | Path) -> Voice:
        """Read a voice from its file. Raises InputError for a file that is missing, damaged or not a voice."""
        path = path_argument(path, "path")
        if not path.is_file():
            raise InputError(f"voice {path}: no such file")
        try:
            header, tensors = _read(path)
        except (OSError, ValueError) as error:
            reason = os_reason(error) if isinstance(error, OSError) else first_line(error)
            raise InputError(
                f"voice {path}: expected a voice file, but it cannot be read ({reason}); "
                "make it again from its recording"
            ) from None
        return cls(header, tensors.get(_PROMPT), tensors.get(_REFERENCE), path)

    def _tensors(self) -> dict[str, Latents]:
        given = ((_PROMPT, self.prompt), (_REFERENCE, self.reference))
        return {name: np.ascontiguousarray(part, np.float32) for name, part in given if part is not None}


def checked_provenance(given: object) -> dict[str, str]:
    """The caller's provenance of a voice; empty for None. Raises InputError unless it maps str to str."""
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(part, str) for part in (*given, *given.values())):
        raise wrong_type(given, "provenance", "a mapping of texts by name")
    return {
        valid_unicode(name, "provenance"): valid_unicode(text, "provenance") for name, text in given.items()
    }


def latent_space(a: Architecture) -> str:
    """A digest that is equal for two architectures with compatible latents."""
    parts = f"{a.generation}|{a.patch_size}|{a.feat_dim}|{a.audio_vae_config.model_dump_json()}"
    return hashlib.sha256(parts.encode()).hexdigest()[:16]


def _read(path: Path) -> tuple[VoiceHeader, dict[str, Any]]:
    tensors, metadata = load_tensors(read_bounded(path, MAX_VOICE_BYTES))
    try:
        header = VoiceHeader.model_validate_json(metadata.get(_METADATA_KEY, ""))
    except ValidationError as error:
        raise ValueError(first_wrong_field(error)) from None
    if header.format != FORMAT:
        raise ValueError(f"expected format {FORMAT}, found {header.format}")
    if unknown := tensors.keys() - {_PROMPT, _REFERENCE}:
        raise ValueError(f"expected {_PROMPT} and {_REFERENCE}, got {min(unknown)!r}")
    for name, latents in tensors.items():
        is_float = latents.dtype == np.float32 and latents.ndim == 3
        if not is_float or not latents.size or not np.isfinite(latents).all():
            raise ValueError(f"{name} is not finite float32 (patches, frames, latent_dim)")
    said, prompt = sum(turn.patches for turn in header.turns), len(tensors.get(_PROMPT, ()))
    if not tensors or said != prompt:
        raise ValueError(f"its turns have {said} patches, its prompt {prompt}")
    return header, tensors
