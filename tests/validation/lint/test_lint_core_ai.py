import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from voxcpm_conversion.core_ai.modules import register_lowering
from voxcpm_conversion.core_ai.toolchain import import_module, quiet
from voxcpm_runtime.commands import cli
from voxcpm_validation.lint import core_ai
from voxcpm_validation.lint.bundle import lint_function
from voxcpm_validation.lint.core_ai import CORE_AI_RULES, read_program

pytest.importorskip("coreai_torch", exc_type=ImportError)


@dataclass(frozen=True)
class Case:
    """A torch function, and the shapes of its inputs and of the state that it updates in place."""

    compute: Callable[..., Any]
    inputs: tuple[tuple[int, ...], ...] = ((1, 4, 8),)
    state: tuple[int, ...] = ()
    also: frozenset[str] = frozenset()
    """Other rules that the converted program violates."""


CACHE = (2, 1, 1, 8, 8)


def written(*layers, read=False):
    """Write rows (1, 1, 4, 8) into layers of a cache, at a computed position or at 0."""

    def compute(rows, cache):
        start, new, seen = rows.sum().reshape(1).round().int(), cache, rows.sum()
        for layer in layers:
            new = torch.ops.voxcpm.write_rows(new, rows, start, layer)
            seen = seen + new[layer].sum() if read else seen
        cache.copy_(new)
        return seen

    return compute


def scattered(rows, cache):
    cache.index_copy_(0, (rows.sum() * torch.ones(4)).int(), rows)
    return rows + 1


def transposed(kernel, stride):
    return lambda x: functional.conv_transpose1d(x, torch.ones(4, 2, kernel), stride=stride)


ROWS = ((1, 1, 4, 8),)
WRITE = frozenset({"computed-begin"})
CASES: dict[str, list[Case]] = {
    "dynamic-shape": [Case(lambda x: torch.nonzero(x) + 1)],
    "scattered-state": [Case(scattered, ((4, 8),), (16, 8), also=frozenset({"dynamic-shape"}))],
    "computed-begin": [Case(written(0), ROWS, CACHE), Case(written(0, 1, read=True), ROWS, CACHE)],
    "unread-write": [Case(written(0, 1), ROWS, CACHE, also=WRITE)],
    "transposed-convolution": [Case(transposed(9, 3)), Case(transposed(2, 16))],
    "rounding-down": [
        Case(lambda x, op=op: op(x) + 1) for op in (torch.floor, torch.ceil, torch.trunc)
    ],
    "program-size": [Case(lambda x: x + 1)],
}  # fmt: skip
CLEAN = [Case(lambda x: torch.div(2 * x, 2, rounding_mode="floor")), Case(transposed(7, 15))]


class Module(nn.Module):
    def __init__(self, compute):
        super().__init__()
        self.compute = compute

    def forward(self, *tensors):
        return self.compute(*tensors)


def found(case, path):
    """The findings in the program that Core AI's converter makes of a case."""
    coreai_torch = import_module("coreai_torch")
    shapes = [*case.inputs, case.state] if case.state else case.inputs
    with quiet():
        exported = torch.export.export(Module(case.compute).eval(), tuple(map(torch.ones, shapes)))
        converter = coreai_torch.TorchConverter(mode=coreai_torch.TorchConverter.Mode.RELEASE)
        register_lowering(converter)
        converter.add_exported_program(
            exported.run_decompositions(coreai_torch.get_decomp_table()),
            entrypoint_name="main",
            input_names=[f"in_{n}" for n in range(len(case.inputs))],
            state_names=["cache"] if case.state else [],
        )
        converter.to_coreai().save_asset(path)
    (function,) = read_program(path)
    return list(lint_function(function, "fp32/tried.aimodel", CORE_AI_RULES))


@pytest.mark.parametrize(
    ("rule", "case"),
    [pytest.param(r.name, case, id=f"{r.name}-{n}") for r in CORE_AI_RULES for n, case in enumerate(CASES[r.name])],
)  # fmt: skip
def test_program_violates_only_its_rule(rule, case, tmp_path, monkeypatch):
    if rule == "program-size":
        monkeypatch.setattr(core_ai, "MAX_PROGRAM", 100)
    findings = found(case, tmp_path / "tried.aimodel")
    assert {finding.rule for finding in findings} == {rule, *case.also}


@pytest.mark.parametrize("case", CLEAN)
def test_conforming_program_has_no_findings(case, tmp_path):
    assert found(case, tmp_path / "tried.aimodel") == []


def test_converted_bundle_has_no_findings(tiny_bundle_27, capsys):
    assert cli.main(["lint", str(tiny_bundle_27), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["precisions"].keys() == {"fp16", "fp32"}
    for precision in report["precisions"].values():
        assert {(f["rule"], f["accepted"][:6]) for f in precision["findings"]} == {
            ("computed-begin", "a risk")
        }
        assert precision["packages"] == 6
        assert precision["operations"] > 1000
