"""Small programs for the lint's rules, built with coremltools and saved as packages."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from voxcpm_constants.step_models import StepModel, TensorSpec
from voxcpm_conversion.core_ml.toolchain import import_coremltools
from voxcpm_runtime.backends.portable.package import MODEL_FILE, read_specification
from voxcpm_validation.lint.bundle import lint_function
from voxcpm_validation.lint.function import Function, read_function
from voxcpm_validation.lint.report import Finding
from voxcpm_validation.lint.rules import RULES

STATE = "cache"


@pytest.fixture
def lint(tmp_path: Path) -> Callable[[Any], list[Finding]]:
    """lint(case): the findings in the program of a `Case` of test_lint_rules.py."""
    return lambda case: list(lint_function(_function(case, tmp_path), "fp16/tried.mlpackage", RULES))


def _declared(case: Any, *outputs: str) -> StepModel:
    def tensors(shapes: Mapping[str, Any], dtype: Any) -> tuple[TensorSpec, ...]:
        return tuple(TensorSpec(name=n, shape=s, dtype=dtype, meaning="") for n, s in shapes.items())

    return StepModel(
        name="tried",
        inputs=tensors(case.inputs, case.dtype),
        outputs=tensors(dict.fromkeys(outputs, (1,)), case.returned or case.dtype),
        state=tensors({STATE: case.state} if case.state else {}, "compute"),
    )


def _converted(case: Any) -> Any:
    """The case's program as an MLModel, without coremltools' optimisations: they would mend some programs."""
    ct = import_coremltools()
    from coremltools.converters.mil import Builder
    from coremltools.converters.mil.mil import types

    model = _declared(case)
    dtype = types.fp32 if case.dtype == "float32" else types.fp16
    specs = [Builder.TensorSpec(_symbolic(t.shape), dtype=dtype) for t in model.inputs]
    specs += [Builder.StateTensorSpec(t.shape_at(0), dtype=types.fp16) for t in model.state]
    # The builder takes the names of the inputs from the function's signature.
    names = ", ".join(t.name for t in (*model.inputs, *model.state))
    target = getattr(ct.target, case.target)
    program = Builder.program(input_specs=specs, opset_version=target)(
        eval(f"lambda {names}: build(mb, {names})", {"build": case.build, "mb": Builder})  # noqa: S307
    )
    flexible = [
        ct.TensorType(
            name=t.name, shape=ct.EnumeratedShapes([t.shape_at(n) for n in range(model.chunk_count)])
        )
        for t in model.inputs
        if t.shape != t.shape_at(0)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ct.convert(
            program,
            convert_to="mlprogram",
            minimum_deployment_target=target,
            compute_precision=ct.precision.FLOAT32,
            inputs=flexible or None,
            pass_pipeline=ct.PassPipeline.EMPTY,
            skip_model_load=True,
        )


def _symbolic(shape: Iterable[Any]) -> tuple[Any, ...]:
    from coremltools.converters.mil.mil import get_new_symbol

    return tuple(get_new_symbol() if isinstance(axis, tuple) else axis for axis in shape)


def _function(case: Any, folder: Path) -> Function:
    """The case's function, read from its damaged package."""
    path = folder / "tried.mlpackage"
    _converted(case).save(str(path))
    specification = read_specification(path)
    case.damage(specification)
    outputs = [output.name for output in specification.description.output]
    (path / MODEL_FILE).write_bytes(specification.SerializeToString())
    return read_function(
        path,
        "main",
        _declared(case, *outputs),
        state="native" if case.state else "passed",
        target=case.linted_as or case.target,
        precision=case.precision,
    )
