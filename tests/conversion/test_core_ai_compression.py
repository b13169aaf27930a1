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
from voxcpm_conversion.core_ai.convolutions import use_phases
from voxcpm_conversion.step_modules import build_step, loaded_modules
from voxcpm_runtime.backends.core_ai.step_model import load_core_ai_step_model
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
    """A weight (outputs, inputs, …) in symmetric blocks of 32 inputs and whole kernels, as coreai-opt documents it."""
    blocks = weight.unflatten(1, (-1, 32))
    scale = blocks.abs().amax(tuple(range(2, blocks.dim())), keepdim=True) / (2**bits - 1) * 2
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return ((blocks / scale).round().clamp(low, high) * scale).flatten(1, 2)


def compress(step: nn.Module, precision: str) -> None:
    """Round each large weight whose inputs are whole blocks; of transposed convolutions by their phases."""
    use_phases(step)
    for name, module in step.named_modules():
        weight = getattr(module, "weight", None)
        if not isinstance(module, nn.Linear | nn.Conv1d) or weight.numel() <= 2048 or weight.size(1) % 32:
            continue
        four = (
            precision == "int4" and ".layers." in name and not name.endswith(("k_proj", "v_proj", "o_proj"))
        )
        module.weight.data = rounded(weight, 4 if four else 8)


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
