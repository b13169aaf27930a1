"""Speech of a bundle with a merged LoRA, compared with upstream; `conversion/test_lora.py` compares layers."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from edited_manifest import edit_manifest
from voxcpm_constants.errors import InputError
from voxcpm_constants.step_models import StepSizes
from voxcpm_conversion import cli
from voxcpm_conversion.checkpoint import Checkpoint
from voxcpm_validation.upstream import load_upstream
from voxcpm_validation.validate import validate_bundle

TEXT = "the you and the world"
EVERYWHERE = {"enable_lm": True, "enable_dit": True, "enable_proj": True}
# One embedding at a time: the effect of a LoRA does not depend on chunks, and fixed shapes convert faster.
SIZES = StepSizes(kv_length=128, prefill_chunks=(1,))


@pytest.fixture(scope="module")
def lora(tmp_path_factory, tiny_checkpoint, write_lora):
    return write_lora(tmp_path_factory.mktemp("lora") / "voice", tiny_checkpoint, **EVERYWHERE)


@pytest.fixture(scope="module")
def bundle(conversion, tiny_checkpoint, lora):
    """A bundle with the LoRA, converted by the command."""

    def make(folder, checkpoint, lora, _):
        sizes = {"max_length": SIZES.kv_length, "prefill_chunk": [1]}
        cli.convert(str(checkpoint), folder, precision=["fp32"], lora=lora, **sizes)

    digest = hashlib.sha256((lora / "lora_weights.safetensors").read_bytes()).hexdigest()
    return conversion("bundle-tiny-lora", make, tiny_checkpoint, lora, digest)


def test_validation_runs_upstream_with_the_lora(bundle, tiny_checkpoint, lora):
    report = validate_bundle(bundle, str(tiny_checkpoint), lora=lora, text=TEXT, patches=2)
    assert min(step.correlation for step in report.steps) > 0.9999999
    assert report.failures() == []
    assert report.checkpoint.endswith("with LoRA voice")


def test_upstream_applies_peft_to_layers_beyond_its_own(tiny_checkpoint, tmp_path):
    """PEFT wraps any linear layer, such as the encoder's, which upstream's `LoRAConfig` cannot name."""
    layer = "feat_encoder.in_proj"
    base = load_upstream(tiny_checkpoint).get_submodule(layer)
    a, b = torch.randn(4, base.in_features), torch.randn(base.out_features, 4)
    save_file({f"base_model.model.{layer}.lora_{half}.weight": t for half, t in (("A", a), ("B", b))},
              tmp_path / "adapter_model.safetensors")  # fmt: skip
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 4, "lora_alpha": 12}')
    opened = Checkpoint.open(tiny_checkpoint, lora=tmp_path).lora
    inputs = torch.randn(3, base.in_features)
    found = load_upstream(tiny_checkpoint, lora=opened).get_submodule(layer)(inputs)
    torch.testing.assert_close(found, base(inputs) + 3 * inputs @ a.T @ b.T)


def test_other_or_missing_lora_is_rejected(bundle, tiny_checkpoint, lora, tmp_path, write_lora):
    def refused(match, folder, given):
        with pytest.raises(InputError, match=match):
            validate_bundle(folder, str(tiny_checkpoint), lora=given)

    refused("was converted with the LoRA voice; pass it with --lora", bundle, None)
    other = write_lora(tmp_path / "voice", tiny_checkpoint, seed=1, **EVERYWHERE)
    refused(r"not the LoRA that .* was converted with \(voice\)", bundle, other)
    same_weights = shutil.copytree(lora, tmp_path / "alpha")
    document = json.loads((lora / "lora_config.json").read_text())
    document["lora_config"]["alpha"] = 8
    (same_weights / "lora_config.json").write_text(json.dumps(document))
    refused(r"not the LoRA that .* was converted with \(voice\)", bundle, same_weights)
    plain = Path(shutil.copytree(bundle, tmp_path / "plain"))
    edit_manifest(plain, lambda document: document["source"].pop("lora"))
    refused("was converted without a LoRA; omit it, or convert with it", plain, lora)
