"""Checkpoints of any size with seeded random weights, in upstream's layout, with activations of realistic scale.

The random numbers of each weight depend only on the seed and the weight's name, not on the order of writing or on other
weights, and only one weight at a time is in memory. The gains below depend only on shapes: a layer whose input has unit
variance gives an output of the stated scale. Such a checkpoint speaks noise, but its arithmetic behaves like a trained
one's: outlier channels, attention that is not uniform, a flow that contracts, and feedback from patch to patch that
damps small errors.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from voxcpm_constants.architecture import Architecture, Transformer
from voxcpm_constants.errors import CheckpointError, os_reason
from voxcpm_constants.tokenizer_file import AUDIO_START, TOKENIZER_FILE
from voxcpm_conversion.checkpoint import VAE_PREFIX, fold_weight_norm
from voxcpm_conversion.checkpoint_files import CONFIG_FILE, MODEL_FILES, TOKENIZER_COMPANIONS, VAE_FILES
from voxcpm_conversion.modules.voxcpm import expected_shapes
from voxcpm_conversion.synthetic_presets import Dtype, Likeness
from voxcpm_conversion.weight_files import Shape

_SAFETENSORS_NAMES = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32", torch.int32: "I32"}

# Trained language models have a few channels far larger than the others: the hard case for fp16 and int8.
_OUTLIER = 8.0
_CHANNELS_PER_OUTLIER = 256

# Root mean square of Snake's output for unit-variance input: sqrt(1 + E[sin⁴]) with alpha = 1.
_SNAKE_RMS = 1.15
_TANH_RMS = 0.63
_SILU_RMS = 0.6

# Of trained-like weights: an outlier channel over the others, the deviation of the logarithms of weights and of row
# norms, the common part of both stop logits over their difference, and a massive activation, or a constant one in the
# decoder, over others of its channel.
_CHANNEL, _DEVIATION, _ROW_DEVIATION, _COMMON, _MASSIVE, _CONSTANT = 64.0, 1.2, 1.0, 60.0, 300.0, 350.0
_UPSAMPLING = r"decoder\.model\.\d+\.block\.1\.weight$"

# The random part of the velocity, and the part that points back along the noisy patch.
_VELOCITY_GAIN = 0.7
_CONTRACTION = 0.5


def write_synthetic_checkpoint(
    folder: Path,
    architecture_json: Mapping[str, Any],
    *,
    seed: int,
    dtype: Dtype = "bfloat16",
    likeness: Likeness = "random",
    tokenizer: Path,
) -> Path:
    """Write config.json, model.safetensors (in `dtype`), audiovae.safetensors (float32) and the tokenizer's files.

    architecture_json: a `config.json` document, a preset's or a published one. tokenizer: a folder to copy them from.
    Returns the folder, which appears only when it is complete. Raises CheckpointError for a config that is not
    VoxCPM's, a missing tokenizer, a folder that is not empty, and for errors of the system, such as a full disk.
    """
    architecture = Architecture.from_document(dict(architecture_json))
    if not (tokenizer / TOKENIZER_FILE).is_file():
        raise CheckpointError(f"{tokenizer}: expected a folder with {TOKENIZER_FILE} to copy")
    model, vae = _Weights(architecture, seed, likeness).stored(getattr(torch, dtype))
    place = Path(os.path.realpath(folder))
    try:
        if os.path.lexists(place) and (not place.is_dir() or any(place.iterdir())):
            raise CheckpointError(f"{folder}: expected a new or empty folder; choose another")
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{place.name}.", dir=place.parent) as temporary:
            made = Path(temporary, "checkpoint")
            made.mkdir()
            _write_safetensors(made / MODEL_FILES[0], model)
            _write_safetensors(made / VAE_FILES[0], vae)
            for name in (TOKENIZER_FILE, *TOKENIZER_COMPANIONS):
                if (tokenizer / name).is_file():
                    shutil.copyfile(tokenizer / name, made / name)
            document = json.dumps(dict(architecture_json), indent=1) + "\n"
            (made / CONFIG_FILE).write_text(document, encoding="utf-8")
            made.replace(place)
    except OSError as error:
        raise CheckpointError(f"{folder}: the checkpoint cannot be written ({os_reason(error)})") from None
    return folder


_Stored = tuple[Shape, torch.dtype, Callable[[], Tensor]]
"""A tensor to write; the function generates its data on demand."""


def _write_safetensors(path: Path, tensors: Mapping[str, _Stored]) -> None:
    """Write a safetensors file tensor by tensor; the library's own writer needs all of them in memory.

    Format: https://huggingface.co/docs/safetensors (length of the header, JSON header, data without gaps).
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (shape, dtype, _) in tensors.items():
        offsets = [offset, offset + math.prod(shape) * dtype.itemsize]
        header[name] = {"dtype": _SAFETENSORS_NAMES[dtype], "shape": list(shape), "data_offsets": offsets}
        offset = offsets[1]
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, dtype, make in tensors.values():
            data = make().to(dtype).contiguous()
            file.write(memoryview(data.flatten().view(torch.uint8).numpy()))


class _Weights:
    """The random weights for one seed, by upstream's names."""

    def __init__(self, architecture: Architecture, seed: int, likeness: Likeness) -> None:
        self.architecture = architecture
        self._seed, self._likeness = seed, likeness

    def stored(self, dtype: torch.dtype) -> tuple[dict[str, _Stored], dict[str, _Stored]]:
        """The contents of model.safetensors and of audiovae.safetensors, by name."""
        model: dict[str, _Stored] = {}
        vae: dict[str, _Stored] = {}
        for name, shape in expected_shapes(self.architecture).items():
            own = name.removeprefix(VAE_PREFIX)
            if own == name:
                model[name] = shape, dtype, partial(self.drawn, name, shape)
            elif name.endswith(".weight") and len(shape) == 3:
                # Convolutions have weight norm, as in published checkpoints: direction and magnitude.
                stem, rows = own.removesuffix(".weight"), (shape[0], 1, 1)
                vae[f"{stem}.weight_g"] = rows, torch.float32, partial(self.magnitude, own, shape)
                vae[f"{stem}.weight_v"] = shape, torch.float32, partial(self.direction, own, shape)
            else:
                vae[own] = shape, torch.float32, partial(self.drawn, name, shape)
        boundaries = self.architecture.audio_vae_config.sr_bin_boundaries
        if boundaries is not None and self.architecture.traits.stores_rate_boundaries:
            make = partial(torch.tensor, boundaries, dtype=torch.int32)
            vae["decoder.sr_bin_boundaries"] = (len(boundaries),), torch.int32, make
        return model, vae

    def normal(self, name: str, shape: Shape) -> Tensor:
        """Standard normal float32 values, determined by the seed and the name."""
        digest = hashlib.sha256(f"{self._seed}:{name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))
        return torch.randn(shape, generator=generator)

    def drawn(self, name: str, shape: Shape) -> Tensor:
        """The values of the weight `name`, from the first rule that matches it."""
        rule = next(rule for pattern, rule in _RULES if re.search(pattern, name))
        weight = rule(self, name, shape)
        for pattern, change in _TRAINED.get(self._likeness, ()):
            weight = change(self, name, weight) if re.search(pattern, name) else weight
        return weight

    def tails(self, name: str, weight: Tensor, deviation: float = _DEVIATION) -> Tensor:
        """The weight times log-normal numbers of unit power; `deviation` is that of their logarithm."""
        numbers = self.normal(f"{name}.tails", tuple(weight.shape))
        return weight * numbers.mul_(deviation).sub_(deviation**2).exp_()

    def outliers(self, width: int) -> Tensor:
        """Indices of the outlier channels of all residual streams of one width."""
        return self.normal(f"outliers.{width}", (width,)).topk(max(1, width // _CHANNELS_PER_OUTLIER)).indices

    def magnitude(self, name: str, shape: Shape) -> Tensor:
        gain = next(gain for pattern, gain in _ROW_NORMS if re.search(pattern, name))
        target = gain(shape) if callable(gain) else gain
        gains = self.normal(f"{name}_g", (shape[0], 1, 1)).mul_(0.1).add_(1.0).clamp_(min=0.5) * target
        return self.tails(name, gains, _ROW_DEVIATION) if self._likeness == "tails" else gains

    def direction(self, name: str, shape: Shape) -> Tensor:
        direction = self.normal(f"{name}_v", shape).mul_(0.05)
        if self._likeness == "tonal" and re.search(_UPSAMPLING, name):
            # Two taps overlap at each output, and their sum is the same at all of them.
            rows = direction[self.outliers(shape[0])]
            early = 1 + 2 * rows[..., : shape[2] // 2]
            direction[self.outliers(shape[0])] = torch.cat((early, 1 - early), dim=2) * rows[..., :1]
        return self.tails(name, direction) if self._likeness == "tails" else direction


Rule = Callable[[_Weights, str, Shape], Tensor]
_Change = Callable[[_Weights, str, Tensor], Tensor]

_STACKS: dict[str, Callable[[Architecture], Transformer]] = {
    "base_lm": lambda a: a.base_lm,
    "residual_lm": lambda a: a.residual_lm,
    "feat_encoder": lambda a: a.feat_encoder,
    "feat_decoder": lambda a: a.locdit,
}


def _linear(gain: float) -> Rule:
    """A rule for matrices: an input of unit variance gives outputs of standard deviation `gain`."""
    return lambda weights, name, shape: weights.normal(name, shape).mul_(gain / math.sqrt(shape[1]))


def _branch(gain: float) -> Rule:
    """A rule for the last matrix of a residual branch, which undoes muP's scale and feeds the outlier channels.

    All branches of a stack together add gain² to the stream's variance. If each layer added as much, a stack of 24
    layers would be chaotic, unlike trained ones.
    """

    def rule(weights: _Weights, name: str, shape: Shape) -> Tensor:
        stack = _STACKS[name.split(".", maxsplit=1)[0]](weights.architecture)
        share = gain / math.sqrt(2 * stack.num_layers)
        matrix = weights.normal(name, shape).mul_(share / stack.residual_scale / math.sqrt(shape[1]))
        matrix[weights.outliers(shape[0])] *= _OUTLIER
        return matrix

    return rule


def _embedding(weights: _Weights, name: str, shape: Shape) -> Tensor:
    table = weights.normal(name, shape).div_(weights.architecture.text_embedding_scale)
    table[:, weights.outliers(shape[1])] *= _OUTLIER / 2
    return table


def _norm(weights: _Weights, name: str, shape: Shape) -> Tensor:
    return weights.normal(name, shape).mul_(0.2).add_(1.0).clamp_(min=0.3)


def _damping_norm(weights: _Weights, name: str, shape: Shape) -> Tensor:
    """The norm in front of a residual branch, which damps the outlier channels, as in trained models."""
    scale = _norm(weights, name, shape)
    scale[weights.outliers(shape[0])] /= _OUTLIER
    return scale


def _velocity(weights: _Weights, name: str, shape: Shape) -> Tensor:
    """The DiT's output projection, which contains a multiple of the input projection's transpose.

    A trained velocity is noise minus data: it points partly along its input, so that the flow contracts.
    """
    latent_dim, hidden = shape
    back = weights.drawn(name.replace("out_proj", "in_proj"), (hidden, latent_dim)).T * (latent_dim / hidden)
    return weights.normal(name, shape).mul_(_VELOCITY_GAIN / math.sqrt(hidden)) + _CONTRACTION * back


def _stop_head(weights: _Weights, name: str, shape: Shape) -> Tensor:
    """The stop head: logits of standard deviation near 1, "continue" well above "stop", as silu's outputs have a
    positive mean.
    """
    matrix = weights.normal(name, shape).div_(math.sqrt(shape[1]))
    matrix[0] += 20.0 / shape[1]
    matrix[1] -= 20.0 / shape[1]
    return matrix


def _spread(center: float, deviation: float) -> Rule:
    return lambda weights, name, shape: weights.normal(name, shape).mul_(deviation).add_(center)


def _alpha(weights: _Weights, name: str, shape: Shape) -> Tensor:
    return weights.normal(name, shape).mul_(0.4).exp_()


def _scaled_channels(factor: float) -> _Change:
    """A change of the outlier channels, which are the last axis."""

    def change(weights: _Weights, _name: str, weight: Tensor) -> Tensor:
        weight[..., weights.outliers(weight.shape[-1])] *= factor
        return weight

    return change


def _tied(weights: _Weights, name: str, weight: Tensor) -> Tensor:
    """Both logits with a common part that is far larger than their difference, and a quarter of the usual lead."""
    common = weights.normal(f"{name}.common", (1, weight.shape[1])) * (_COMMON * weight.std())
    return weight - 0.75 * weight.mean(1, keepdim=True) + common


def _massive(weights: _Weights, name: str, weight: Tensor) -> Tensor:
    """The outlier channels of the local encoder's first position, or of the token that begins speech."""
    row = weight[AUDIO_START] if "embed_tokens" in name else weight
    row[..., weights.outliers(row.shape[-1])] *= _MASSIVE
    return weight


def _constant(weights: _Weights, name: str, bias: Tensor) -> Tensor:
    """The bias in front of an upsampling block, with a constant in the outlier channels."""
    block = int(name.split(".")[3]) + 1
    if f"{VAE_PREFIX}decoder.model.{block}.block.1.bias" in expected_shapes(weights.architecture):
        bias[weights.outliers(len(bias))] = _CONSTANT
    return bias


def _without_constant(weights: _Weights, name: str, bias: Tensor) -> Tensor:
    """The bias of a transposed convolution, less what its kernel makes of the constants."""
    own = name.removeprefix(VAE_PREFIX).replace("bias", "weight")
    shape = expected_shapes(weights.architecture)[VAE_PREFIX + own]
    kernel = fold_weight_norm(weights.magnitude(own, shape), weights.direction(own, shape))
    return bias - _CONSTANT * kernel[weights.outliers(shape[0]), :, :: shape[2] // 2].sum((0, 2))


# The change that gives a kind of weights its likeness; norm and columns cancel in float32.
_TRAINED: dict[Likeness, tuple[tuple[str, _Change], ...]] = {
    "outliers": (
        (r"(input|post_attention)_layernorm\.weight$", _scaled_channels(1 / _CHANNEL)),
        (r"([qkv]|gate|up)_proj\.weight$", _scaled_channels(_CHANNEL)),
    ),
    "tails": ((r"(_proj|linear_[12])\.weight$", _Weights.tails),),
    "massive": ((r"special_token$|embed_tokens\.weight$", _massive),),
    "tied": ((r"stop_head\.weight$", _tied),),
    "tonal": (
        (r"decoder\.model\.\d+\.(block\.4\.block\.3\.)?bias$", _constant),
        (_UPSAMPLING.replace("weight", "bias"), _without_constant),
    ),
}

# The first matching pattern gives a weight's rule.
_RULES: tuple[tuple[str, Rule], ...] = (
    (r"embed_tokens\.weight$", _embedding),
    (r"(input|post_attention)_layernorm\.weight$", _damping_norm),
    (r"norm\.weight$", _norm),
    (r"[qk]_proj\.weight$", _linear(1.5)),
    (r"(o|down)_proj\.weight$", _branch(1.6)),
    (r"fsq_layer\.out_proj\.weight$", _linear(1 / _TANH_RMS)),
    (r"(lm|res)_to_dit_proj\.weight$", _linear(0.25)),
    (r"(lm|res)_to_dit_proj\.bias$", _spread(0.0, 0.65)),
    (r"enc_to_lm_proj\.weight$", _linear(0.5)),
    (r"enc_to_lm_proj\.bias$", _spread(0.0, 0.85)),
    (r"cond_proj\.weight$", _linear(0.4)),
    (r"estimator\.out_proj\.weight$", _velocity),
    (r"time_mlp\.linear_1\.weight$", _linear(math.sqrt(2.0))),
    (r"time_mlp\.linear_2\.weight$", _linear(1 / _SILU_RMS)),
    (r"stop_head\.weight$", _stop_head),
    (r"feat_encoder\.special_token$", _spread(0.0, 1.0)),
    (r"\.alpha$", _alpha),
    (r"scale_embed\.weight$", _spread(1.0, 0.1)),
    (r"bias_embed\.weight$", _spread(0.0, 0.1)),
    (r"\.bias$", _spread(0.0, 0.1)),
    (r"\.weight$", _linear(1.0)),
)


def _transposed(shape: Shape) -> float:
    """The row length for a transposed convolution (inputs, outputs, 2·stride): each output sums two taps per input."""
    inputs, outputs, taps = shape
    return math.sqrt(outputs * taps / (2 * inputs)) / (_SNAKE_RMS * 1.15)


# Length of a row with weight norm, such that typical input gives unit variance; the level of speech is near 0.1.
_ROW_NORMS: tuple[tuple[str, float | Callable[[Shape], float]], ...] = (
    (r"^encoder\.block\.0\.weight$", 6.0),
    (r"^encoder\.block\.\d+\.block\.4\.weight$", 1 / (_SNAKE_RMS * 1.15)),
    (r"^decoder\.model\.\d+\.block\.1\.weight$", _transposed),
    (r"block\.\d+\.block\.1\.weight$", 1 / _SNAKE_RMS),
    (r"block\.\d+\.block\.3\.weight$", 0.3 / _SNAKE_RMS),
    (r"^decoder\.model\.([2-9]|\d\d+)\.weight$", 0.25),
    (r"\.weight$", 1.0),
)
