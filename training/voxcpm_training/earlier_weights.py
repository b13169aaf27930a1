"""Weights of an earlier training, from its averaged.pt or an exported checkpoint's folder."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from voxcpm_training.architecture import CONFIG
from voxcpm_training.audio_vae_modules import AudioVAE


def audio_vae_weights(path: Path, device: torch.device) -> dict[str, Tensor]:
    """State of an `AudioVAE`. A checkpoint has the normalisation folded into fc_mu, so here it is the identity."""
    if not path.is_dir():
        return torch.load(path, map_location=device, weights_only=True)
    vae = AudioVAE(CONFIG["audio_vae_config"])
    exported = {name: t.float() for name, t in load_file(path / "audiovae.safetensors").items()}
    found = dict(vae.state_dict())
    for name in found:
        if f"{name}_v" in exported:
            direction = exported[f"{name}_v"]
            norm = direction.flatten(1).norm(dim=1)[:, None, None]
            found[name] = direction / norm * exported[f"{name}_g"]
        elif name in exported:
            found[name] = exported[name]
    found["normalisation.running_mean"] = torch.zeros_like(found["normalisation.running_mean"])
    found["normalisation.running_var"] = torch.full_like(
        found["normalisation.running_var"], 1 - vae.normalisation.eps
    )
    return {name: tensor.to(device) for name, tensor in found.items()}


def language_model_weights(path: Path, device: torch.device) -> dict[str, Tensor]:
    """State of this package's `VoxCPM`, from a checkpoint's folder."""
    return {name: t.float().to(device) for name, t in load_file(path / "model.safetensors").items()}
