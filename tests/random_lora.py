"""A LoRA with random weights, in the format of upstream's training."""

import json
import sys
from pathlib import Path


def write_lora(
    folder: Path, checkpoint: Path, form: str = "safetensors", seed: int = 0, **config: object
) -> Path:
    import torch
    from safetensors.torch import save_file

    from voxcpm_validation.upstream import load_upstream

    model = load_upstream(checkpoint)
    model.lora_config = sys.modules[type(model).__module__].LoRAConfig(**config)
    model._apply_lora()
    generator = torch.Generator().manual_seed(seed)
    # With these gains the update is a third of a typical weight, whose entries are about 1 / sqrt(in).
    gains = {"lora_A": 1.0, "lora_B": 0.33 * model.lora_config.r / model.lora_config.alpha}
    weights = {
        name: torch.randn(t.shape, generator=generator) * gains[name.rpartition(".")[2]] / t.shape[1] ** 0.5
        for name, t in model.get_lora_state_dict().items()
    }
    folder.mkdir(parents=True)
    if form == "safetensors":
        save_file(weights, folder / "lora_weights.safetensors")
    else:
        torch.save({"state_dict": weights}, folder / "lora_weights.ckpt")
    document = {"base_model": "openbmb/VoxCPM1.5", "lora_config": model.lora_config.model_dump()}
    (folder / "lora_config.json").write_text(json.dumps(document))
    return folder
