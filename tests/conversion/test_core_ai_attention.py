"""Attention's matrix products as the sums of blocks that Core AI computes halves with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from voxcpm_constants.architecture import Architecture
from voxcpm_constants.step_models import BASE_LM_STEP, RESIDUAL_LM_STEP, StepSizes, declare_step_models
from voxcpm_conversion.core_ai.attention import (
    CHANNELS,
    POSITIONS,
    PastInBlocks,
    summed_scores,
    summed_values,
    use_blocks,
)
from voxcpm_conversion.core_ai.toolchain import import_module, quiet
from voxcpm_conversion.modules.minicpm4 import Past
from voxcpm_conversion.modules.voxcpm import empty_modules
from voxcpm_conversion.step_modules import CachedStack, build_step
from voxcpm_conversion.synthetic_presets import presets
from voxcpm_runtime.backends.core_ai_calls import awaited

WHOLE, BROKEN = (4 * CHANNELS, 3 * POSITIONS), (4 * CHANNELS + 2, 3 * POSITIONS + 1)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(("width", "positions"), [WHOLE, BROKEN])
def test_sums_of_blocks_are_attention(batch: int, width: int, positions: int) -> None:
    torch.manual_seed(0)
    heads, rows = 2, 5
    leading = (1, heads) if batch == 1 else (heads, batch)
    queries, mask = torch.randn(*leading, rows, width), torch.randn(batch, rows, positions)
    cache = torch.randn(2, 1, heads, batch * positions, width)
    keys, values = torch.randn(2, 1, heads, batch, width)
    places = torch.arange(batch) * positions + 1

    def attended(form: type[Past]) -> tuple[Tensor, Tensor, Tensor]:
        past = form((cache[0].clone(), cache[1].clone()), places, mask, batch)
        result, updated = past.attended(queries, keys, values)
        return result, *updated

    for found, expected in zip(attended(PastInBlocks), attended(Past), strict=True):
        torch.testing.assert_close(found, expected)


class Ones(nn.Module):
    """Both products of attention, of ones that are as many as the inner axes are long."""

    def __init__(self, *, blocks: bool) -> None:
        super().__init__()
        self.blocks = blocks

    def forward(self, wide: Tensor, deep: Tensor) -> tuple[Tensor, Tensor]:
        """wide (1, 1, 4, 4096) and deep (1, 1, 4096, 4), halves."""
        if self.blocks:
            return summed_scores(wide, wide), summed_values(wide, deep)
        return wide @ wide.transpose(-1, -2), wide @ deep


@pytest.mark.parametrize(("blocks", "sums"), [(False, 2048), (True, 4096)])
def test_apples_runtime_adds_blocks_without_rounding(*, blocks: bool, sums: int, tmp_path: Path) -> None:
    """In halves 2048 + 1 is 2048. Should plain products give 4096, too, blocks are no longer needed."""
    pytest.importorskip("coreai_torch", exc_type=ImportError)
    given = (torch.ones(1, 1, 4, 4096).half(), torch.ones(1, 1, 4096, 4).half())
    with quiet():
        exported = torch.export.export(Ones(blocks=blocks).eval(), given)
        coreai_torch = import_module("coreai_torch")
        exported = exported.run_decompositions(coreai_torch.get_decomp_table())
        converter = coreai_torch.TorchConverter()
        converter.add_exported_program(
            exported,
            entrypoint_name="main",
            input_names=["wide", "deep"],
            output_names=["scores", "weighted"],
        )
        asset = converter.to_coreai().save_asset(tmp_path / "ones.aimodel")

    async def outputs() -> dict[str, np.ndarray]:
        array = import_module("coreai.runtime").NDArray
        async with asset.executable() as model:
            main = model.load_function("main")
            found = await main({"wide": array(given[0].numpy()), "deep": array(given[1].numpy())})
            return {name: np.array(value.numpy()) for name, value in found.items()}

    for value in awaited(outputs()).values():
        np.testing.assert_array_equal(value, np.full((1, 1, 4, 4), sums, np.float16))


def test_language_models_attend_to_their_caches_in_blocks() -> None:
    architecture, sizes = Architecture.model_validate(presets()["tiny-2"]), StepSizes()
    modules = empty_modules(architecture)
    steps = {
        name: build_step(declared, modules, architecture, sizes)
        for name, declared in declare_step_models(architecture, sizes).items()
    }
    use_blocks(steps.values())

    found = {
        name: {m.past for m in step.modules() if isinstance(m, CachedStack)} for name, step in steps.items()
    }
    assert {name: forms for name, forms in found.items() if forms} == {
        BASE_LM_STEP: {PastInBlocks},
        RESIDUAL_LM_STEP: {PastInBlocks},
    }
