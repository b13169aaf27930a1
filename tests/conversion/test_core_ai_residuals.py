"""The residual sums with which Core AI computes halves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from core_ai_halves import on_core_ai
from voxcpm_constants.architecture import Architecture
from voxcpm_constants.step_models import FEAT_ENCODER, LOCDIT_STEP, Precision, StepSizes, declare_step_models
from voxcpm_constants.targets import CORE_AI, package_form
from voxcpm_conversion.checkpoint import Checkpoint
from voxcpm_conversion.core_ai import packages
from voxcpm_conversion.core_ai.attention import attended_by_sums
from voxcpm_conversion.core_ai.residuals import CompensatedStack, compensated_sum, use_compensated_sums
from voxcpm_conversion.modules.minicpm4 import EVERY, Attention, Stack, attended, rope_table
from voxcpm_conversion.modules.voxcpm import empty_modules
from voxcpm_conversion.step_modules import build_step
from voxcpm_conversion.synthetic_presets import presets

ARCHITECTURE = Architecture.model_validate(presets()["tiny"])


class Additions(nn.Module):
    """Eight terms that are added to a total one by one."""

    def __init__(self, *, compensated: bool) -> None:
        super().__init__()
        self.compensated = compensated

    def forward(self, total: Tensor, term: Tensor) -> tuple[Tensor]:
        lost: Tensor | None = None
        for _ in range(8):
            if self.compensated:
                total, lost = compensated_sum(total, term, lost)
            else:
                total = total + term
        return (total,)


@pytest.mark.parametrize(("compensated", "total"), [(False, 2048), (True, 2056)])
def test_apples_runtime_keeps_what_a_sum_has_lost(*, compensated: bool, total: int, tmp_path: Path) -> None:
    """In halves 2048 + 1 is 2048."""
    given = (torch.full((1, 4), 2048.0).half(), torch.ones(1, 4).half())
    (found,) = on_core_ai(Additions(compensated=compensated), given, tmp_path)
    np.testing.assert_array_equal(found, np.full((1, 4), total, np.float16))


def _stack(seed: int) -> tuple[Stack, tuple[Tensor, Tensor], Tensor]:
    """A stack with random weights, its rotary table and its input (sequences, positions, hidden)."""
    torch.manual_seed(seed)
    t = replace(ARCHITECTURE.locdit, num_layers=8)
    stack, length = Stack(t, 5), 5
    for parameter in stack.parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, std=parameter.size(1) ** -0.5)
    return (
        stack.eval(),
        rope_table(ARCHITECTURE.lm_config, t.head_dim, length),
        torch.randn(64, 5, t.hidden_size),
    )


@pytest.mark.parametrize("keep", [EVERY, slice(0, 1), slice(-2, None)], ids=str)
def test_a_stack_with_compensation_is_the_stack(keep: slice) -> None:
    stack, rope, x = _stack(0)
    with torch.no_grad():
        torch.testing.assert_close(CompensatedStack(stack)(x, rope, keep), stack(x, rope, keep))


def test_halves_lose_less_with_compensation() -> None:
    """In eight layers with random weights, where plain sums make a quarter of the error's power."""
    stack, rope, x = _stack(0)
    with torch.no_grad():
        # Weights and input are halves already, so that arithmetic alone makes the difference.
        for tensor in stack.parameters():
            tensor.data = tensor.half().float()
        x = x.half().float()
        expected = stack(x, rope, EVERY)
        stack.half()
        halves = tuple(table.half() for table in rope)
        plain, compensated = (
            (form(x.half(), halves, EVERY).float() - expected).square().mean().item()
            for form in (stack, CompensatedStack(stack))
        )
    assert compensated < 0.85 * plain


def test_local_transformers_compensate_also_where_step_modules_share_them() -> None:
    sizes, modules = StepSizes(), empty_modules(ARCHITECTURE)
    declared = declare_step_models(ARCHITECTURE, sizes)
    steps = {
        name: [build_step(model, modules, ARCHITECTURE, sizes) for _ in range(2)]
        for name, model in declared.items()
    }
    weights = {name: set(step[0].state_dict()) for name, step in steps.items()}
    for both in steps.values():
        use_compensated_sums(both)

    for name, both in steps.items():
        forms = [
            [type(m) for m in step.modules() if isinstance(m, (Stack, CompensatedStack))] for step in both
        ]
        assert forms == [[CompensatedStack] if name in (FEAT_ENCODER, LOCDIT_STEP) else []] * 2
        # Weights keep their names, by which the recipes choose formats.
        assert set(both[0].state_dict()) == weights[name]


@pytest.mark.parametrize("name", [FEAT_ENCODER, LOCDIT_STEP])
@pytest.mark.parametrize(
    ("precision", "forms"), [("fp32", (Stack, attended)), ("fp16", (CompensatedStack, attended_by_sums))]
)
def test_programs_have_these_forms_in_fp16_alone(
    monkeypatch: pytest.MonkeyPatch, name: str, precision: Precision, forms: tuple[type, object]
) -> None:
    exported: list[nn.Module] = []
    monkeypatch.setattr(packages, "export_program", lambda steps, *_, **__: exported.extend(steps.values()))
    sizes, checkpoint = StepSizes(), cast(Checkpoint, SimpleNamespace(architecture=ARCHITECTURE))
    declared = declare_step_models(ARCHITECTURE, sizes)[name]
    form = package_form(declared, CORE_AI)
    packages._program(
        checkpoint, declared, form, sizes, precision, empty_modules(ARCHITECTURE), lambda stage, done: None
    )

    assert len(exported) == len(form.functions)
    for step in exported:
        found = [m for m in step.modules() if isinstance(m, (Stack, CompensatedStack))]
        assert [type(stack) for stack in found] == [forms[0]]
        assert {m.attended for m in step.modules() if isinstance(m, Attention)} == {forms[1]}
