"""All of VoxCPM's modules under upstream's names, to detect missing and unexpected weights of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from voxcpm_constants.architecture import Architecture
from voxcpm_constants.errors import CheckpointError
from voxcpm_conversion.modules.audio_vae import AudioVAE
from voxcpm_conversion.modules.local_transformers import LocalDiT, LocalEncoder, ScalarQuantizer
from voxcpm_conversion.modules.minicpm4 import Stack
from voxcpm_conversion.weight_files import Shape

_LISTED = 20
"""Maximum weights of each kind in an error message."""


class FlowMatching(nn.Module):
    """The DiT as the `estimator` of a solver, as upstream names it; the solver itself is part of the runtime."""

    def __init__(self, estimator: LocalDiT) -> None:
        super().__init__()
        self.estimator = estimator


EMBED_TOKENS = "base_lm.embed_tokens.weight"
"""Name of the text embedding table (vocabulary, hidden). It is not a module: the runtime itself looks tokens up."""


class VoxCPMModules(nn.Module):
    """All modules with their parameters. It has no `forward`; the step models in `step_modules` have one each."""

    def __init__(self, a: Architecture) -> None:
        super().__init__()
        hidden, dit_hidden = a.lm_config.hidden_size, a.dit_config.hidden_dim
        self.base_lm = Stack(a.base_lm)
        self.residual_lm = Stack(a.residual_lm)
        self.feat_encoder = LocalEncoder(a.feat_encoder, a.feat_dim, a.patch_size)
        self.feat_decoder = FlowMatching(LocalDiT(a.locdit, a.feat_dim, a.patch_size, a.traits.mu_tokens))
        self.fsq_layer = ScalarQuantizer(
            hidden, a.scalar_quantization_latent_dim, a.scalar_quantization_scale
        )
        self.enc_to_lm_proj = nn.Linear(a.encoder_config.hidden_dim, hidden)
        self.lm_to_dit_proj = nn.Linear(hidden, dit_hidden)
        self.res_to_dit_proj = nn.Linear(hidden, dit_hidden)
        if a.traits.fuses_residual_input:
            self.fusion_concat_proj = nn.Linear(2 * hidden, hidden)
        self.stop_proj = nn.Linear(hidden, hidden)
        self.stop_head = nn.Linear(hidden, 2, bias=False)
        self.audio_vae = AudioVAE(a)


def empty_modules(a: Architecture) -> VoxCPMModules:
    """All modules without data, on torch's meta device: names and shapes cost no memory at any size."""
    with torch.device("meta"):
        return VoxCPMModules(a).eval().requires_grad_(False)


def expected_shapes(a: Architecture) -> dict[str, Shape]:
    """Shape of every weight of a checkpoint of this architecture, by name."""
    shapes = {name: tuple(parameter.shape) for name, parameter in empty_modules(a).named_parameters()}
    return {EMBED_TOKENS: (a.lm_config.vocab_size, a.lm_config.hidden_size), **shapes}


def check_weights(found: Mapping[str, Shape], a: Architecture) -> None:
    """Compare the names and shapes of a checkpoint's weights with its architecture.

    Raises CheckpointError, which lists the weights that are missing, unexpected or of another shape.
    """
    expected = expected_shapes(a)
    lora = [name for name in found if ".lora_" in f".{name}" and name not in expected]
    if lora:
        raise CheckpointError(
            f"the checkpoint contains {len(lora)} LoRA weights in addition to the base weights ({lora[0]}, …): "
            "keep only the base weights here, and pass the LoRA in its own folder with --lora"
        )
    missing = [f"{name} {expected[name]}" for name in sorted(expected.keys() - found.keys())]
    unexpected = [f"{name} {found[name]}" for name in sorted(found.keys() - expected.keys())]
    wrong = [
        f"{name} (expected {shape}, found {found[name]})"
        for name, shape in sorted(expected.items())
        if found.get(name, shape) != shape
    ]
    groups = (("missing", missing), ("unexpected", unexpected), ("of another shape", wrong))
    complaints = [f"{len(names)} {what}: {_listing(names)}" for what, names in groups if names]
    if complaints:
        raise CheckpointError(f"the weights do not fit config.json; {'; '.join(complaints)}")


def _listing(names: list[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more
