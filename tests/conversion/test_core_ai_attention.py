"""Attention's matrix products as the sums that Core AI computes halves with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from core_ai_halves import on_core_ai
from voxcpm_constants.architecture import Architecture
from voxcpm_constants.step_models import (
    BASE_LM_STEP,
    FEAT_ENCODER,
    LOCDIT_STEP,
    RESIDUAL_LM_STEP,
    StepSizes,
    declare_step_models,
)
from voxcpm_conversion.core_ai.attention import (
    CHANNELS,
    POSITIONS,
    PastInBlocks,
    attended_by_sums,
    summed_scores,
    summed_values,
    use_sums,
)
from voxcpm_conversion.modules.minicpm4 import Attention, Past, attended
from voxcpm_conversion.modules.voxcpm import empty_modules
from voxcpm_conversion.step_modules import CachedStack, build_step
from voxcpm_conversion.synthetic_presets import presets

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
    wide, deep = torch.ones(1, 1, 4, 4096).half(), torch.ones(1, 1, 4096, 4).half()
    for value in on_core_ai(Ones(blocks=blocks), (wide, deep), tmp_path):
        np.testing.assert_array_equal(value, np.full((1, 1, 4, 4), sums, np.float16))


@pytest.mark.parametrize("sequences", [1, 3])
def test_sums_are_attention_without_a_cache(sequences: int) -> None:
    torch.manual_seed(0)
    queries = torch.randn(sequences, 2, 5, 8)
    keys, values = torch.randn(2, sequences, 2, 3, 8)

    found, expected = (form(queries, keys, values) for form in (attended_by_sums, attended))
    torch.testing.assert_close(found, expected)


class Within(nn.Module):
    """Attention without a cache, in one of its forms."""

    def __init__(self, *, sums: bool) -> None:
        super().__init__()
        self.form = attended_by_sums if sums else attended

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor]:
        return (self.form(queries, keys, values),)


# Scores of 4096 by two keys, of which partial sums of 2048 + 1 are 2048; the first key's value is 1, the other's 0.
SCORES = (
    torch.ones(1, 1, 1, 4096),
    torch.stack((torch.ones(4096), torch.tensor([2.0, 0.0]).repeat(2048)))[None, None],
    torch.tensor([1.0, 0.0])[None, None, :, None].repeat(1, 1, 1, 4096),
)
# The mean of 4096 ones, of which partial sums of 1/2 + 1/4096 are 1/2.
VALUES = (torch.zeros(1, 1, 1, 2), torch.zeros(1, 1, 4096, 2), torch.ones(1, 1, 4096, 2))


@pytest.mark.parametrize(
    ("sums", "given", "expected"),
    [(False, SCORES, 0.0), (True, SCORES, 0.5), (False, VALUES, 0.5), (True, VALUES, 1.0)],
    ids=["plain scores", "scores", "plain values", "values"],
)
def test_apples_runtime_sums_attention_without_a_cache_precisely(
    *, sums: bool, given: tuple[Tensor, ...], expected: float, tmp_path: Path
) -> None:
    """Should plain products give what sums give, this form is no longer needed."""
    (found,) = on_core_ai(Within(sums=sums), [tensor.half() for tensor in given], tmp_path)
    np.testing.assert_array_equal(found, np.full(found.shape, expected, np.float16))


def test_language_models_attend_to_their_caches_in_blocks_and_local_transformers_by_sums() -> None:
    architecture, sizes = Architecture.model_validate(presets()["tiny-2"]), StepSizes()
    modules = empty_modules(architecture)
    steps = {
        name: build_step(declared, modules, architecture, sizes)
        for name, declared in declare_step_models(architecture, sizes).items()
    }
    use_sums(steps.values())

    found = {
        name: {m.past for m in step.modules() if isinstance(m, CachedStack)} for name, step in steps.items()
    }
    assert {name: forms for name, forms in found.items() if forms} == {
        BASE_LM_STEP: {PastInBlocks},
        RESIDUAL_LM_STEP: {PastInBlocks},
    }
    for name in (FEAT_ENCODER, LOCDIT_STEP):
        attentions = [m for m in steps[name].modules() if isinstance(m, Attention)]
        assert [m.attended for m in attentions] == [attended_by_sums] * len(attentions) != []
