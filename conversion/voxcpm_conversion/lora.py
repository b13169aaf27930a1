"""A LoRA in upstream's layout: low-rank updates of linear layers, merged into the weights as they are read.

    folder/
      lora_weights.safetensors   or lora_weights.ckpt
      lora_config.json           rank, alpha and layers; upstream's earlier releases did not write it

A layer's weight W (out, in) becomes W + alpha / r · B A with lora_A (r, in) and lora_B (out, r). Upstream's
`LoRALinear` (voxcpm/modules/layers/lora.py) adds B A x at every call instead. Dropout matters in training only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import nn

from voxcpm_constants.architecture import Architecture
from voxcpm_constants.errors import CheckpointError, first_wrong_field
from voxcpm_constants.json_files import read_json
from voxcpm_constants.manifest import MergedLora, record_file
from voxcpm_constants.user_folders import user_path
from voxcpm_conversion.modules.voxcpm import empty_modules
from voxcpm_conversion.weight_files import Shape, WeightFile, open_weight_file

CONFIG_FILE = "lora_config.json"
# In upstream's order of preference (`load_lora_weights`).
WEIGHT_FILES = ("lora_weights.safetensors", "lora_weights.ckpt")
_SUFFIXES = (".safetensors", ".ckpt", ".pth")
_A, _B = "lora_A", "lora_B"
# A layer's name without its position in the stack: base_lm.layers.3.self_attn.q_proj -> base_lm.q_proj.
_KIND = re.compile(r"^(\w+)\..*\b(\w+)$")
_ATTENTION = ("q_proj", "v_proj", "k_proj", "o_proj")


class LoraConfig(BaseModel):
    """The `lora_config` block of lora_config.json, with the defaults of upstream's `LoRAConfig`."""

    # Upstream ignores unknown keys. They are allowed here too, but stored, so that `remarks` can report them.
    model_config = ConfigDict(extra="allow", frozen=True)

    enable_lm: bool = False
    enable_dit: bool = False
    enable_proj: bool = False
    r: int = Field(default=8, gt=0)
    alpha: int = 16
    dropout: float = 0.0
    target_modules_lm: tuple[str, ...] = _ATTENTION
    target_modules_dit: tuple[str, ...] = _ATTENTION
    # The last one is VoxCPM2's; the first generation has no layer of that name.
    target_proj_modules: tuple[str, ...] = (
        "enc_to_lm_proj",
        "lm_to_dit_proj",
        "res_to_dit_proj",
        "fusion_concat_proj",
    )

    def enables(self, layer: str) -> bool:
        """Whether upstream adds a LoRA to the linear layer of this name in a checkpoint (`_apply_lora`)."""
        kind = layer.rpartition(".")[2]
        if layer.startswith(("base_lm.", "residual_lm.")):
            return self.enable_lm and kind in self.target_modules_lm
        if layer.startswith("feat_decoder.estimator."):
            return self.enable_dit and kind in self.target_modules_dit
        return self.enable_proj and layer == kind and kind in self.target_proj_modules


class Lora:
    """An opened LoRA that fits an architecture. weights, config_file: paths of its files; the latter may be None."""

    def __init__(
        self, name: str, file: WeightFile, config_file: Path | None, layers: Mapping[str, Shape]
    ) -> None:
        self.weights = file.paths[0]
        self.config_file = config_file
        self._name = name
        self._file = file
        document = {} if config_file is None else _document(config_file)
        base = document.get("base_model")
        self._hint = f"it was trained on {base}" if base else "is it for another model?"
        found = self._layers_with_weights(layers)
        self.config = _assumed(file) if config_file is None else _config(config_file, document)
        self._merged = [layer for layer in found if self.config.enables(layer)]
        self._skipped = [layer for layer in found if not self.config.enables(layer)]
        if not self._merged:
            raise CheckpointError(
                f"{self.weights}: expected weights of layers that {CONFIG_FILE} enables, but {_some(self._skipped)} "
                "is not among them"
            )
        for layer in self._merged:
            self._check_pair(layer, layers[layer])

    @classmethod
    def open(cls, path: str | Path, architecture: Architecture) -> Lora:
        """Open a folder or a weight file (.safetensors, .ckpt, .pth), with lora_config.json next to the weights.

        Without lora_config.json, upstream's defaults apply (see `remarks`). Raises CheckpointError if there is no
        LoRA, a file cannot be read, or a weight does not match this architecture.
        """
        path = user_path(path)
        weights = _weight_file(path)
        config = weights.with_name(CONFIG_FILE)
        file = open_weight_file(weights)
        return cls(
            path.resolve().name, file, config if config.is_file() else None, _linear_layers(architecture)
        )

    def merged(self, name: str, weight: torch.Tensor) -> torch.Tensor:
        """The checkpoint's float32 weight `name` with this LoRA added; unchanged if the LoRA does not update it."""
        layer = name.removesuffix(".weight")
        if layer not in self._merged:
            return weight
        a, b = (self._file.read(f"{layer}.{half}").to(torch.float32) for half in (_A, _B))
        return torch.addmm(weight, b, a, alpha=self.config.alpha / self.config.r)

    def record(self) -> MergedLora:
        """The manifest's entry for this LoRA."""
        return MergedLora(
            name=self._name,
            sha256=record_file(self.weights).sha256,
            r=self.config.r,
            alpha=self.config.alpha,
            weights=len(self._merged),
            modules=tuple(sorted({_KIND.sub(r"\1.\2", layer) for layer in self._merged})),
        )

    def remarks(self) -> list[str]:
        """Warnings for the user, one line each: assumed settings, unknown keys, skipped layers."""
        lines = []
        if self.config_file is None:
            lines.append(
                f"{self.weights}: no {CONFIG_FILE} next to it; using upstream's alpha {self.config.alpha}, and "
                f"r {self.config.r} from the weights"
            )
        if self.config.model_extra:
            lines.append(f"{CONFIG_FILE}: ignored unknown keys {', '.join(self.config.model_extra)}")
        if self._skipped:
            config = CONFIG_FILE if self.config_file else "upstream's default"
            lines.append(f"{self.weights}: skipped {_some(self._skipped)}, which {config} does not enable")
        return lines

    def _layers_with_weights(self, layers: Mapping[str, Shape]) -> list[str]:
        """The layers with weights in the file. Raises CheckpointError for an empty file and for unexpected weights."""
        if not self._file.shapes:
            raise CheckpointError(f"{self.weights}: expected {_A} and {_B} of some layers, found no weights")
        split = {key: key.rpartition(".") for key in sorted(self._file.shapes)}
        unexpected = [
            key for key, (layer, _, half) in split.items() if layer not in layers or half not in (_A, _B)
        ]
        if unexpected:
            raise CheckpointError(
                f"{self.weights}: expected {_A} and {_B} of this checkpoint's linear layers, "
                f"found {_some(unexpected)}; {self._hint}"
            )
        return list(dict.fromkeys(layer for layer, _, _ in split.values()))

    def _check_pair(self, layer: str, shape: Shape) -> None:
        out_features, in_features = shape
        rank = f"r {self.config.r}, {'of ' + CONFIG_FILE if self.config_file else 'of its first layer'}"
        for half, expected in ((_A, (self.config.r, in_features)), (_B, (out_features, self.config.r))):
            found = self._file.shapes.get(f"{layer}.{half}")
            if found != expected:
                raise CheckpointError(
                    f"{self.weights}: expected {layer}.{half} of shape {expected} ({rank}), "
                    f"found {'none' if found is None else found}; {self._hint}"
                )


def _weight_file(path: Path) -> Path:
    if path.is_dir():
        weights = next((path / name for name in WEIGHT_FILES if (path / name).is_file()), None)
        if weights is None:
            raise CheckpointError(
                f"{path}: expected a LoRA, {' or '.join(WEIGHT_FILES)}, found neither; "
                "a full fine-tune is converted as a checkpoint"
            )
        return weights
    if not path.is_file() or path.suffix not in _SUFFIXES:
        raise CheckpointError(
            f"{path}: not a LoRA (expected a folder with {' or '.join(WEIGHT_FILES)}, or such a file)"
        )
    return path


def _document(path: Path) -> dict[str, Any]:
    try:
        document: Any = read_json(path)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: expected JSON, but it cannot be read ({error})") from None
    # Upstream's training writes this block, and its loading fails without it.
    if not isinstance(document, dict) or not isinstance(document.get("lora_config"), dict):
        raise CheckpointError(
            f"{path}: expected upstream's layout, an object lora_config with r, alpha, …; found none"
        )
    return document


def _config(path: Path, document: dict[str, Any]) -> LoraConfig:
    try:
        return LoraConfig.model_validate(document["lora_config"])
    except ValidationError as error:
        raise CheckpointError(f"{path}: lora_config.{first_wrong_field(error)}") from None


def _assumed(file: WeightFile) -> LoraConfig:
    """Settings of a LoRA without lora_config.json: upstream's defaults, with the rank of the weights.

    Upstream's class enables LMs and DiT with r = 8 and alpha = 16, its command line with r = 32 and alpha = 16; the
    weights load there only if the rank is theirs.
    """
    ranks = (
        shape[0] for key, shape in sorted(file.shapes.items()) if key.endswith(_A) and shape and shape[0]
    )
    return LoraConfig(enable_lm=True, enable_dit=True, r=next(ranks, 8))


def _linear_layers(a: Architecture) -> dict[str, Shape]:
    """Shape (out, in) of every linear layer's weight, by the layer's name in a checkpoint."""
    modules = empty_modules(a).named_modules()
    return {name: (m.out_features, m.in_features) for name, m in modules if isinstance(m, nn.Linear)}


def _some(names: list[str]) -> str:
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")
