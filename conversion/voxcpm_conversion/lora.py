"""A LoRA in upstream's layout or PEFT's: low-rank updates of linear layers, merged into the weights as they are read.

    folder/
      lora_weights.safetensors   or lora_weights.ckpt
      lora_config.json           rank, alpha and layers; upstream's earlier releases did not write it
or, as PEFT saves it,
      adapter_model.safetensors  or adapter_model.bin
      adapter_config.json

A layer's weight W (out, in) becomes W + alpha / r · B A with lora_A (r, in) and lora_B (out, r). Upstream's
`LoRALinear` (voxcpm/modules/layers/lora.py) adds B A x at every call instead. Dropout matters in training only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from pydantic import BaseModel, Field, ValidationError
from torch import nn

from voxcpm_constants.architecture import Architecture
from voxcpm_constants.errors import CheckpointError, first_wrong_field
from voxcpm_constants.json_files import checkpoint_json
from voxcpm_constants.manifest import MergedLora, record_file
from voxcpm_constants.user_folders import is_hub_id, user_path
from voxcpm_conversion.modules.voxcpm import empty_modules
from voxcpm_conversion.weight_files import (
    Shape,
    WeightFile,
    downloaded,
    open_weight_file,
    plain_name,
    stored_keys,
)

LORA_CONFIG_FILE = "lora_config.json"
# In upstream's order of preference (`load_lora_weights`).
WEIGHT_FILES = (
    *("lora_weights.safetensors", "lora_weights.ckpt"),
    *("adapter_model.safetensors", "adapter_model.bin"),
)
_NAMES = f"{', '.join(WEIGHT_FILES[:-1])} or {WEIGHT_FILES[-1]}"
PEFT_CONFIG_FILE = "adapter_config.json"
_LATEST = (
    "latest"  # Upstream's training keeps its newest LoRA under this name, next to those of earlier steps
)
_UPSTREAM_SUFFIXES = (".safetensors", ".ckpt", ".pth")
_SUFFIXES = (*_UPSTREAM_SUFFIXES, ".bin")
_PEFT_KEY = re.compile(r"(?:\.default)?(?:\.weight)?$")  # After lora_A and lora_B
_A, _B = "lora_A", "lora_B"
# A layer's name without its position in the stack: base_lm.layers.3.self_attn.q_proj -> base_lm.q_proj.
_KIND = re.compile(r"^(\w+)\..*\b(\w+)$")
_ATTENTION = ("q_proj", "v_proj", "k_proj", "o_proj")


class LoraConfig(BaseModel, extra="allow", frozen=True):
    """The `lora_config` block of lora_config.json, with the defaults of upstream's `LoRAConfig`.

    Upstream ignores unknown keys. They are allowed here too, but stored, so that `remarks` can report them.
    """

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
    """An opened LoRA that fits an architecture.

    weights, config_file: paths of its files; the latter may be None. is_peft: whether it has the settings of PEFT.
    """

    def __init__(
        self,
        name: str,
        file: WeightFile,
        config_file: Path | None,
        layers: Mapping[str, Shape],
        checkpoint: str,
    ) -> None:
        self.weights = file.paths[0]
        self.config_file = config_file
        self._name = name
        # Upstream's names, such as base_lm.layers.0.mlp.up_proj.lora_A.
        self._keys = stored_keys(file, lambda key: _PEFT_KEY.sub("", plain_name(key), count=1))
        self._shapes = {name: file.shapes[key] for name, key in self._keys.items()}
        self._file = file
        self.config, base = (_assumed(self._shapes), None) if config_file is None else _settings(config_file)
        differs = base and Path(str(base)).name.lower() != Path(checkpoint).name.lower()
        self._hint = f"it was trained on {base}" if differs else "is it for another model?"
        found = self._layers_with_weights(layers)
        self.is_peft = config_file is not None and config_file.name == PEFT_CONFIG_FILE
        # PEFT applies all weights that it saves.
        self.layers = [layer for layer in found if self.is_peft or self.config.enables(layer)]
        """Names of the linear layers that it updates."""
        self._skipped = [layer for layer in found if layer not in self.layers]
        if not self.layers:
            raise CheckpointError(
                f"{self.weights}: expected weights of layers that {LORA_CONFIG_FILE} enables, but "
                f"{_some(self._skipped)} is not among them"
            )
        for layer in self.layers:
            self._check_pair(layer, layers[layer])

    @classmethod
    def open(
        cls,
        path: str | Path,
        architecture: Architecture,
        checkpoint: str = "",
        *,
        cache_dir: Path | None = None,
        local_files_only: bool = False,
    ) -> Lora:
        """Open a folder, a weight file (.safetensors, .ckpt, .pth, .bin) or a hub id, with settings next to it.

        checkpoint: name of the checkpoint that it is merged into, for messages. A folder of a training run means its
        `latest`. Without settings, upstream's defaults apply (see `remarks`). Raises CheckpointError if there is no
        LoRA, a file cannot be read, or a weight does not match this architecture.
        """
        name = str(path)
        path = user_path(path)
        if not path.exists() and is_hub_id(name):
            names = [*WEIGHT_FILES, LORA_CONFIG_FILE, PEFT_CONFIG_FILE]
            names += [f"{_LATEST}/{file}" for file in names]
            path = downloaded(name, names, "LoRA", cache_dir=cache_dir, local_files_only=local_files_only)
        else:
            name = path.resolve().name
        weights = _weight_file(path)
        configs = (weights.with_name(name) for name in (LORA_CONFIG_FILE, PEFT_CONFIG_FILE))
        config = next((path for path in configs if path.is_file()), None)
        return cls(name, open_weight_file(weights), config, _linear_layers(architecture), checkpoint)

    def merged(self, name: str, weight: torch.Tensor) -> torch.Tensor:
        """The checkpoint's float32 weight `name` with this LoRA added; unchanged if the LoRA does not update it."""
        layer = name.removesuffix(".weight")
        if layer not in self.layers:
            return weight
        a, b = (self._file.read(self._keys[f"{layer}.{half}"]).to(torch.float32) for half in (_A, _B))
        return torch.addmm(weight, b, a, alpha=self.config.alpha / self.config.r)

    def renamed_tensors(self) -> dict[str, torch.Tensor]:
        """All its tensors by upstream's names, `layer.lora_A` (r, in) and `layer.lora_B` (out, r).

        Empty if the file has these names already, in a format that upstream reads.
        """
        if self.weights.suffix in _UPSTREAM_SUFFIXES and all(name == key for name, key in self._keys.items()):
            return {}
        return {name: self._file.read(key) for name, key in self._keys.items()}

    def record(self) -> MergedLora:
        """The manifest's entry for this LoRA."""
        return MergedLora(
            name=self._name,
            sha256=record_file(self.weights).sha256,
            r=self.config.r,
            alpha=self.config.alpha,
            weights=len(self.layers),
            modules=tuple(sorted({_KIND.sub(r"\1.\2", layer) for layer in self.layers})),
        )

    def remarks(self) -> list[str]:
        """Warnings for the user, one line each: assumed settings, unknown keys, skipped layers."""
        lines = []
        if self.config_file is None:
            lines.append(
                f"{self.weights}: no {LORA_CONFIG_FILE} next to it; using upstream's alpha {self.config.alpha}, and "
                f"r {self.config.r} from the weights"
            )
        if self.config.model_extra:
            lines.append(f"{LORA_CONFIG_FILE}: ignored unknown keys {', '.join(self.config.model_extra)}")
        if self._skipped:
            config = LORA_CONFIG_FILE if self.config_file else "upstream's default"
            lines.append(f"{self.weights}: skipped {_some(self._skipped)}, which {config} does not enable")
        return lines

    def _layers_with_weights(self, layers: Mapping[str, Shape]) -> list[str]:
        """The layers with weights in the file. Raises CheckpointError for an empty file and for unexpected weights."""
        if not self._shapes:
            raise CheckpointError(f"{self.weights}: expected {_A} and {_B} of some layers, found no weights")
        split = {key: key.rpartition(".") for key in sorted(self._shapes)}
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
        rank = f"r {self.config.r}, {'of ' + LORA_CONFIG_FILE if self.config_file else 'of its first layer'}"
        for half, expected in ((_A, (self.config.r, in_features)), (_B, (out_features, self.config.r))):
            found = self._shapes.get(f"{layer}.{half}")
            if found != expected:
                raise CheckpointError(
                    f"{self.weights}: expected {layer}.{half} of shape {expected} ({rank}), "
                    f"found {'none' if found is None else found}; {self._hint}"
                )


def _weight_file(path: Path) -> Path:
    if path.is_dir():
        files = (folder / name for folder in (path, path / _LATEST) for name in WEIGHT_FILES)
        if (weights := next(filter(Path.is_file, files), None)) is None:
            raise CheckpointError(
                f"{path}: expected a LoRA, {_NAMES}, found none of them; "
                "a full fine-tune is converted as a checkpoint"
            )
        return weights
    if not path.is_file() or path.suffix not in _SUFFIXES:
        raise CheckpointError(
            f"{path}: not a LoRA (expected a folder with {_NAMES}, such a file, or a hub id org/name)"
        )
    return path


# Settings of PEFT that change the result, and the values that leave it a plain LoRA.
_PLAIN_PEFT = {"use_dora": False, "use_rslora": False, "bias": "none", "rank_pattern": {}, "alpha_pattern": {},
               "fan_in_fan_out": False, "modules_to_save": None}  # fmt: skip


def _settings(path: Path) -> tuple[LoraConfig, object]:
    """The settings in a file of upstream's or PEFT's form, and the base that it was made for, if known."""
    document = checkpoint_json(path)
    is_peft = path.name == PEFT_CONFIG_FILE and isinstance(document, dict)
    # Upstream's training writes this block, and its loading fails without it.
    if not is_peft and not (isinstance(document, dict) and isinstance(document.get("lora_config"), dict)):
        raise CheckpointError(
            f"{path}: expected upstream's layout, an object lora_config with r, alpha, …; found none"
        )
    try:
        if not is_peft:
            return LoraConfig.model_validate(document["lora_config"]), document.get("base_model")
        other = [key for key, plain in _PLAIN_PEFT.items() if document.get(key, plain) not in (plain, None)]
        if document.get("peft_type", "LORA") != "LORA" or other:
            found = f"{other[0]} {document[other[0]]}" if other else f"peft_type {document['peft_type']}"
            raise CheckpointError(
                f"{path}: expected a plain LoRA, found {found}; merge it with PEFT, and convert that"
            )
        config = LoraConfig(r=document.get("r", 8), alpha=document.get("lora_alpha", 8))
        return config, document.get("base_model_name_or_path")
    except ValidationError as error:
        raise CheckpointError(
            f"{path}: {'' if is_peft else 'lora_config.'}{first_wrong_field(error)}"
        ) from None


def _assumed(shapes: Mapping[str, Shape]) -> LoraConfig:
    """Settings of a LoRA without lora_config.json: upstream's defaults, with the rank of the weights.

    Upstream's class enables LMs and DiT with r = 8 and alpha = 16, its command line with r = 32 and alpha = 16; the
    weights load there only if the rank is theirs.
    """
    ranks = (shape[0] for key, shape in sorted(shapes.items()) if key.endswith(_A) and shape and shape[0])
    return LoraConfig(enable_lm=True, enable_dit=True, r=next(ranks, 8))


def _linear_layers(a: Architecture) -> dict[str, Shape]:
    """Shape (out, in) of every linear layer's weight, by the layer's name in a checkpoint."""
    modules = empty_modules(a).named_modules()
    return {name: (m.out_features, m.in_features) for name, m in modules if isinstance(m, nn.Linear)}


def _some(names: list[str]) -> str:
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")
