"""Export of a step model to a Core AI program, with one function for each length of its inputs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from voxcpm_constants.step_models import StepModel
from voxcpm_constants.targets import PackageForm, updated_name
from voxcpm_conversion.core_ai.arithmetic import CoreAIStep, compute_dtype
from voxcpm_conversion.core_ai.caches import register_lowering
from voxcpm_conversion.core_ai.toolchain import import_module
from voxcpm_conversion.step_modules import example_inputs


def export_program(steps: Mapping[str, nn.Module], form: PackageForm, *, half: bool) -> Any:
    """Convert the functions of a step model to one Core AI program, an `AIProgram`.

    steps: the module of each function of `form`, by name; they may share parameters, of which the program has one copy.
    half: their parameters are float16, and so is the arithmetic.
    """
    coreai_torch = import_module("coreai_torch")
    # Stack traces of PyTorch would be stored otherwise, with the paths of this machine.
    converter = coreai_torch.TorchConverter(mode=coreai_torch.TorchConverter.Mode.RELEASE)
    register_lowering(converter)
    for name, declared in form.functions.items():
        passed = declared.state if form.state == "rows" else ()
        with torch.no_grad():
            exported = torch.export.export(
                CoreAIStep(steps[name], declared, form.state, half=half).eval(),
                _examples(declared, half=half),
            ).run_decompositions(_decompositions())
        converter.add_exported_program(
            exported,
            entrypoint_name=name,
            input_names=[t.name for t in (*declared.inputs, *passed)],
            output_names=[
                *(t.name for t in declared.outputs),
                *(updated_name(t, form.state) for t in passed),
            ],
            state_names=[t.name for t in declared.state if t not in passed],
        )
    return converter.to_coreai()


@cache
def _decompositions() -> dict[Any, Any]:
    # A dictionary: PyTorch's own table looks through all its operators whenever it is copied.
    return dict(import_module("coreai_torch").get_decomp_table())


def _examples(declared: StepModel, *, half: bool) -> tuple[Tensor, ...]:
    """Zeros for the inputs and states of a function."""
    tensors = (*declared.inputs, *declared.state)
    return tuple(
        example.to(compute_dtype(half=half)) if tensor.dtype == "compute" else example
        for tensor, example in zip(tensors, example_inputs(tensors, 0), strict=True)
    )
