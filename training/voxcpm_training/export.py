"""Write a checkpoint in upstream's layout: `python -m voxcpm_training.export vae/averaged.pt lm/averaged.pt -o DIR`."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from voxcpm_training.architecture import CONFIG
from voxcpm_training.latents import load_audio_vae
from voxcpm_training.text import tokenizer_document

# Constant log variance of the posterior: that of the decoder's training noise. Inference uses only the mean.
_LOG_VARIANCE = 2 * math.log(0.15)
_TOKENIZER_CONFIG = {
    "tokenizer_class": "LlamaTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>",
    "add_bos_token": False, "add_eos_token": False, "legacy": True, "clean_up_tokenization_spaces": False,
    "model_max_length": CONFIG["max_length"],
}  # fmt: skip


def audio_vae_weights(path: Path) -> dict[str, Tensor]:
    """The AudioVAE's weights with upstream's names and weight norm, and the normalisation folded into fc_mu."""
    vae = load_audio_vae(path, torch.device("cpu"))
    state = {
        name: tensor for name, tensor in vae.state_dict().items() if not name.startswith("normalisation.")
    }
    mean, variance = vae.normalisation.running_mean, vae.normalisation.running_var
    deviation = (variance + vae.normalisation.eps).sqrt()
    state["encoder.fc_mu.weight"] = state["encoder.fc_mu.weight"] / deviation[:, None, None]
    state["encoder.fc_mu.bias"] = (state["encoder.fc_mu.bias"] - mean) / deviation
    exported: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if name.endswith(".weight"):
            exported |= _weight_norm(name, tensor)
        else:
            exported[name] = tensor
    # fc_logvar is constant: its magnitude is zero, but not its direction, as weight norm divides by its norm.
    constant = torch.full_like(state["encoder.fc_mu.bias"], _LOG_VARIANCE)
    direction = torch.ones_like(state["encoder.fc_mu.weight"])
    exported |= {
        "encoder.fc_logvar.weight_g": torch.zeros(len(constant), 1, 1),
        "encoder.fc_logvar.weight_v": direction,
        "encoder.fc_logvar.bias": constant,
    }
    return exported


def _weight_norm(name: str, weight: Tensor) -> dict[str, Tensor]:
    """weight_g and weight_v of a weight. weight_v is the weight rounded to fp16, so folding rounds only once."""
    direction = weight.half().float()
    return {f"{name}_g": direction.flatten(1).norm(dim=1)[:, None, None], f"{name}_v": direction}


def write_checkpoint(audio_vae: Path, language_model: Path, out: Path) -> None:
    """Write a checkpoint in upstream's layout from both trainings' averaged.pt, in fp16."""
    out.mkdir(parents=True, exist_ok=True)
    for name, document in (
        ("config.json", CONFIG), ("tokenizer.json", tokenizer_document()), ("tokenizer_config.json", _TOKENIZER_CONFIG),
        ("special_tokens_map.json", {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}),
    ):  # fmt: skip
        (out / name).write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    model = torch.load(language_model, map_location="cpu", weights_only=True)
    for file, weights in (
        ("model.safetensors", model),
        ("audiovae.safetensors", audio_vae_weights(audio_vae)),
    ):
        halves = {name: tensor.half().contiguous() for name, tensor in weights.items()}
        save_file(halves, out / file, {"format": "pt"})


def main() -> None:
    """Export a checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("vae", type=Path, help="the AudioVAE's averaged.pt")
    parser.add_argument("language_model", type=Path, help="the language model's averaged.pt")
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    write_checkpoint(options.vae, options.language_model, options.output)


if __name__ == "__main__":
    main()
