"""Compressed Core AI programs on Apple's runtime, against torch with weights that are rounded here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor, nn

from core_ai_agreement import beside_torch
from voxcpm_constants.manifest import Manifest
from voxcpm_constants.step_models import (
    AUDIO_VAE_DECODER,
    BASE_LM_STEP,
    Precision,
    StepSizes,
    declare_step_models,
)
from voxcpm_conversion.checkpoint import Checkpoint
from voxcpm_conversion.modules.audio_vae import CausalConvTranspose1d
from voxcpm_conversion.step_modules import build_step, loaded_modules
from voxcpm_runtime.backends.loading import load_core_ai_step_model
from voxcpm_validation.measures import Agreement, agreement

pytest.importorskip("coreai_torch", exc_type=ImportError)

SIZES = StepSizes(kv_length=128, prefill_chunks=(1,))


@pytest.fixture(scope="module")
def folders(some_packages: Callable[..., Path]) -> dict[str, Path]:
    """Compressed programs of the "tiny" checkpoint, by their step model."""
    precisions = {BASE_LM_STEP: ("int8", "int4"), AUDIO_VAE_DECODER: ("int8",)}
    return {
        name: some_packages(f"core-ai-small-{name}", "tiny", [name], SIZES, given, "macOS27")
        for name, given in precisions.items()
    }


def rounded(weight: Tensor, bits: int) -> Tensor:
    """A weight with rows as coreai-opt documents its formats: int8 symmetric, uint4 with an offset."""
    if bits == 8:
        scale = weight.abs().amax(1, keepdim=True) / 127.5
        return (weight / scale).round().clamp(-128, 127) * scale
    low, high = (weight.amin(1, keepdim=True).clamp(max=0), weight.amax(1, keepdim=True).clamp(min=0))
    scale = (high - low) / 15
    offset = (-low / scale).round()
    return ((weight / scale).round() + offset).clamp(0, 15).sub(offset) * scale


def compress(step: nn.Module, precision: str) -> None:
    """Round each large weight: in int8 by output channel, of a transposed convolution by sample between two frames."""
    for name, module in step.named_modules():
        weight = getattr(module, "weight", None)
        if not isinstance(module, nn.Linear | nn.Conv1d | nn.ConvTranspose1d) or weight.numel() <= 2048:
            continue
        if isinstance(module, CausalConvTranspose1d):
            inputs, outputs, width = weight.shape
            taps = weight.reshape(inputs, outputs, 2, -1).permute(1, 3, 0, 2)
            rows = rounded(taps.reshape(outputs * width // 2, -1), 8).reshape(taps.shape)
            module.weight.data = rows.permute(2, 0, 3, 1).reshape(weight.shape)
        elif precision == "int4" and ".layers." in name and not name.endswith(("k_proj", "v_proj", "o_proj")):
            module.weight.data = rounded(weight.reshape(-1, 32), 4).reshape(weight.shape)
        else:
            module.weight.data = rounded(weight.flatten(1), 8).reshape(weight.shape)


def test_precisions_have_the_sizes_of_their_formats(tiny_bundle_27: Path, folders: dict[str, Path]) -> None:
    def size(folder: Path, precision: str) -> int:
        return (folder / precision / f"{BASE_LM_STEP}.aimodel" / "main.mlirb").stat().st_size

    small = folders[BASE_LM_STEP]
    sizes = [size(tiny_bundle_27, p) for p in ("fp32", "fp16")] + [size(small, p) for p in ("int8", "int4")]
    assert sizes == sorted(sizes, reverse=True)
    # A quarter of the bytes, and the graph of two functions.
    assert sizes[2] < 0.5 * sizes[0]


@pytest.mark.parametrize(
    ("name", "precision"), [(BASE_LM_STEP, "int8"), (BASE_LM_STEP, "int4"), (AUDIO_VAE_DECODER, "int8")]
)
def test_compressed_programs_compute_what_torch_computes_with_rounded_weights(
    folders: dict[str, Path],
    tiny_checkpoint: Path,
    name: str,
    precision: Precision,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """56 to 59 dB, the rest being half arithmetic. The rounding alone costs more than the bound: 20 to 41 dB."""
    monkeypatch.setenv("VOXCPM_COREML_CACHE", str(tmp_path))
    checkpoint = Checkpoint.open(tiny_checkpoint)
    declared = declare_step_models(checkpoint.architecture, SIZES)[name]
    model = load_core_ai_step_model(folders[name], Manifest.read(folders[name]), precision, name)

    def against(step: nn.Module) -> Agreement:
        calls = beside_torch(declared, step, model, chunks=(0, 0, 0, 0))
        return agreement(*(np.concatenate([call[side][0].ravel() for call in calls]) for side in (0, 1)))

    step = build_step(declared, loaded_modules(checkpoint, declared, SIZES), checkpoint.architecture, SIZES)
    plain = against(step)
    compress(step, precision)
    alike = against(step)
    assert alike.snr_db > 50 > plain.snr_db
