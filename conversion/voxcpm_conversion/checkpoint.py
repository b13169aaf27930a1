"""A VoxCPM checkpoint in upstream's layout: configuration, weights by upstream's names, tokenizer files.

    folder/
      config.json
      model.safetensors       or model.safetensors.index.json with its shards, or pytorch_model.bin
      audiovae.safetensors    or audiovae.pth; optional if the model's file has the AudioVAE's weights, as audio_vae.*
      tokenizer.json          and, where published, tokenizer_config.json and special_tokens_map.json
      README.md               optional; its front matter may name the licence

Weights are read lazily, so that a checkpoint is never in memory as a whole. Reading a weight folds weight norm into it
and merges the LoRA, if there is one.
"""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from voxcpm_constants.architecture import Architecture
from voxcpm_constants.errors import CheckpointError
from voxcpm_constants.manifest import Source
from voxcpm_constants.speech_profile import SpeechProfile
from voxcpm_constants.tokenizer_file import TOKENIZER_FILE, open_tokenizer
from voxcpm_constants.user_folders import is_hub_id, user_path
from voxcpm_conversion.checkpoint_files import (
    CONFIG_FILE,
    MODEL_FILES,
    TOKENIZER_COMPANIONS,
    VAE_FILES,
    check_files,
    check_not_mlx,
    download_checkpoint,
    first_file,
    licence_in_card,
    mlx_error,
)
from voxcpm_conversion.lora import Lora
from voxcpm_conversion.weight_files import Shape, WeightFile, open_weight_file, plain_name, stored_keys

VAE_PREFIX = "audio_vae."

# Buffers in checkpoints that are not weights.
_BUFFERS = (
    re.compile(r"(^|\.)rope_emb\.(inv_freq|cos_cached|sin_cached)$"),  # tables that follow from config.json
    re.compile(r"^audio_vae\.decoder\.sr_bin_boundaries$"),  # repeats audio_vae_config.sr_bin_boundaries
)

# Suffixes (magnitude, direction) of torch.nn.utils.weight_norm, and of its parametrisation.
_WEIGHT_NORM = (
    (".weight_g", ".weight_v"),
    (".parametrizations.weight.original0", ".parametrizations.weight.original1"),
)


@dataclass(frozen=True)
class _Weight:
    """The stored tensors of one weight: a single one, or weight norm's magnitude and direction."""

    file: WeightFile
    stored: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """An opened checkpoint."""

    folder: Path
    architecture: Architecture
    files: tuple[WeightFile, ...]
    name: str
    revision: str | None
    speech: SpeechProfile | None  # Its `speech.json`
    lora: Lora | None  # Merged into the weights as they are read

    def __post_init__(self) -> None:
        """Raises CheckpointError for weights of integers, whose scales are missing or in a form of other programs."""
        if any(name.endswith(".scales") for name in self._weights):
            raise mlx_error(self.folder, self.folder, {})
        integers = [n for n, w in self._weights.items() if not w.file.integers.isdisjoint(w.stored)]
        if integers:
            raise CheckpointError(
                f"{self.folder}: expected weights in float32, float16 or bfloat16, but {integers[0]} and "
                f"{len(integers) - 1} more are integers, of a quantised form; convert the checkpoint it was made from"
            )

    @cached_property
    def _weights(self) -> dict[str, _Weight]:
        model, *vaes = self.files
        # As in upstream, the AudioVAE's weights come from its own file; a copy inside the model's file is ignored.
        found = {n: w for n, w in _weights(model).items() if not (vaes and n.startswith(VAE_PREFIX))}
        for vae in vaes:
            found |= {VAE_PREFIX + n.removeprefix(VAE_PREFIX): w for n, w in _weights(vae).items()}
        return {n: w for n, w in found.items() if not any(buffer.search(n) for buffer in _BUFFERS)}

    @classmethod
    def open(
        cls,
        folder_or_hub_id: str | Path,
        *,
        revision: str | None = None,
        lora: str | Path | None = None,
        cache_dir: Path | None = None,
        local_files_only: bool = False,
    ) -> Checkpoint:
        """Open a folder or, if there is no such folder, a Hugging Face id ("openbmb/VoxCPM1.5") at `revision`.

        lora: folder or weight file of a LoRA to merge. cache_dir: folder for downloads. Default: the hub's own.
        Raises CheckpointError for a file that is missing, damaged or not VoxCPM's, and for an incompatible LoRA.
        """
        name = str(folder_or_hub_id)
        folder = user_path(folder_or_hub_id)
        if not folder.exists() and is_hub_id(name):
            folder = download_checkpoint(name, revision, cache_dir, local_files_only)
            # The hub's cache names a snapshot's folder by its commit; the given revision may be a branch.
            revision = folder.name if folder.parent.name == "snapshots" else revision
        elif not folder.is_dir():
            raise CheckpointError(
                f"{name}: no such checkpoint (expected a folder with {CONFIG_FILE}, or a hub id org/name)"
            )
        else:
            name, revision = folder.resolve().name, None
        check_files(folder, {path.name: None for path in folder.iterdir()})
        check_not_mlx(folder, folder)
        config = folder / CONFIG_FILE
        architecture = Architecture.from_file(config)
        try:
            open_tokenizer(folder, needs_config=False)
        except ValueError as error:
            raise CheckpointError(str(error)) from None
        model = open_weight_file(first_file(folder, MODEL_FILES))
        inside = any(plain_name(key).startswith(VAE_PREFIX) for key in model.shapes)
        own_vae = not inside or any((folder / name).is_file() for name in VAE_FILES)
        files = (model, open_weight_file(first_file(folder, VAE_FILES))) if own_vae else (model,)
        merged = None
        if lora is not None:
            merged = Lora.open(
                lora, architecture, name, cache_dir=cache_dir, local_files_only=local_files_only
            )
        return cls(folder, architecture, files, name, revision, SpeechProfile.from_checkpoint(folder), merged)

    def shapes(self) -> dict[str, Shape]:
        """Shape of every weight by upstream's name, after weight norm is folded; reads no tensor data."""
        return {name: weight.file.shapes[weight.stored[-1]] for name, weight in self._weights.items()}

    def tensor(self, name: str) -> torch.Tensor:
        """One weight as a float32 copy, with the LoRA merged. Raises CheckpointError if it is missing or not finite."""
        if name not in self._weights:
            raise CheckpointError(
                f"{self.folder}: expected a weight {name}, but it is missing from the checkpoint"
            )
        weight = self._weights[name]
        # Cast before folding: upstream keeps the AudioVAE in float32 and folds there.
        parts = [weight.file.read(stored).to(torch.float32, copy=True) for stored in weight.stored]
        folded = parts[0] if len(parts) == 1 else fold_weight_norm(*parts)
        whole = folded if self.lora is None else self.lora.merged(name, folded)
        if not torch.isfinite(whole).all():
            raise CheckpointError(
                f"{self.folder}: the weight {name} has values that are not finite (NaN or infinite); download the "
                "checkpoint again, or use one from earlier in the training"
            )
        return whole

    def tokenizer_files(self) -> dict[str, Path]:
        """Paths of the tokenizer's files by name: `tokenizer.json`, and the companions that exist."""
        paths = {name: self.folder / name for name in (TOKENIZER_FILE, *TOKENIZER_COMPANIONS)}
        return {name: path for name, path in paths.items() if path.is_file()}

    def inputs(self) -> tuple[Path, ...]:
        """Folders and files that a conversion reads: the checkpoint's, and its LoRA's."""
        return (self.folder,) if self.lora is None else (self.folder, self.lora.weights)

    def sha256(self) -> str:
        """SHA-256 over the contents of the checkpoint's own weight files, in name order."""
        digest = hashlib.sha256()
        for path in sorted((path for file in self.files for path in file.paths), key=lambda path: path.name):
            with path.open("rb") as stream:
                while block := stream.read(1 << 20):
                    digest.update(block)
        return digest.hexdigest()

    def source(self) -> Source:
        """The origin of the weights, as the bundle's manifest records it."""
        return Source(
            checkpoint=self.name,
            revision=self.revision,
            sha256=self.sha256(),
            lora=None if self.lora is None else self.lora.record(),
            licence=(self.speech and self.speech.licence) or licence_in_card(self.folder),
        )


def fold_weight_norm(magnitude: torch.Tensor, direction: torch.Tensor) -> torch.Tensor:
    """w = g · v / ‖v‖, with the norm over all axes but the first (torch.nn.utils.weight_norm's dim=0).

    magnitude (first, 1, …), direction and result (first, second, …). The first axis is the outputs of a convolution
    and the inputs of a transposed convolution; upstream normalises over the other axes in both.
    """
    norm: torch.Tensor = direction.flatten(1).norm(dim=1).view(-1, *(1,) * (direction.dim() - 1))
    return direction * (magnitude.reshape(norm.shape) / norm)


def _weights(file: WeightFile) -> dict[str, _Weight]:
    """The weights of a file by name, without wrapper prefixes, and with weight norm's pairs joined."""
    stored = stored_keys(file)
    pairs: dict[str, tuple[str, ...]] = {}
    for name in list(stored):
        for magnitude, direction in _WEIGHT_NORM:
            stem = name.removesuffix(direction)
            if name.endswith(direction) and _fits(file, stored.get(stem + magnitude), stored[name]):
                pairs[f"{stem}.weight"] = (stored.pop(stem + magnitude), stored.pop(name))
    single = {name: (key,) for name, key in stored.items()}
    return {name: _Weight(file, keys) for name, keys in {**single, **pairs}.items()}


def _fits(file: WeightFile, magnitude: str | None, direction: str) -> bool:
    """Whether there is one magnitude per row; otherwise both halves keep their names and are reported."""
    rows = file.shapes[direction][:1]
    return magnitude is not None and bool(rows) and math.prod(file.shapes[magnitude]) == rows[0]
