"""Each rule of the lint has a small program that breaks it, and no other rule."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from voxcpm_constants.step_models import Precision, StepModel, TensorSpec
from voxcpm_constants.targets import Target
from voxcpm_conversion.toolchain import import_coremltools
from voxcpm_runtime.backends.portable.package import MODEL_FILE, read_specification
from voxcpm_validation.lint import interface, values
from voxcpm_validation.lint.bundle import lint_function
from voxcpm_validation.lint.function import Function, read_function
from voxcpm_validation.lint.report import Finding
from voxcpm_validation.lint.rules import ACCEPTED, RULES

HALF = np.float16
STATE = "cache"
SQUARE = {"x": (4, 4)}


@dataclass(frozen=True)
class Case:
    """A program, its declaration, and what is done to the saved package."""

    build: Callable[..., Any]
    """(Builder, **inputs) → the MIL value that the program returns."""
    inputs: Mapping[str, tuple[Any, ...]] = field(default_factory=lambda: SQUARE)
    """Shapes; an axis that is a tuple has several lengths."""
    state: tuple[int, ...] = ()
    dtype: str = "compute"
    returned: str = ""
    """The result's dtype, if it is another."""
    precision: Precision = "fp16"
    target: Target = "macOS14"
    linted_as: Target | None = None
    """The target that the bundle claims; by default the one that the program is made for."""
    batch: int = 1
    damage: Callable[[Any], object] = lambda specification: None


def declared(case: Case, *outputs: str) -> StepModel:
    def tensors(shapes: Mapping[str, Any], dtype: Any) -> tuple[TensorSpec, ...]:
        return tuple(TensorSpec(name=n, shape=s, dtype=dtype, meaning="") for n, s in shapes.items())

    return StepModel(
        name="tried",
        inputs=tensors(case.inputs, case.dtype),
        outputs=tensors(dict.fromkeys(outputs, (1,)), case.returned or case.dtype),
        state=tensors({STATE: case.state} if case.state else {}, "compute"),
    )


def converted(case: Case) -> Any:
    """The case's program as an MLModel, without coremltools' optimisations: they would mend some programs."""
    ct = import_coremltools()
    from coremltools.converters.mil import Builder
    from coremltools.converters.mil.mil import types

    model = declared(case)
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


def function(case: Case, folder: Path) -> Function:
    """The case's function, read from its damaged package."""
    path = folder / "tried.mlpackage"
    converted(case).save(str(path))
    specification = read_specification(path)
    outputs = [output.name for output in specification.description.output]
    case.damage(specification)
    (path / MODEL_FILE).write_bytes(specification.SerializeToString())
    return read_function(
        path,
        "main",
        declared(case, *outputs),
        keeps_state=bool(case.state),
        target=case.linted_as or case.target,
        precision=case.precision,
        batch=case.batch,
    )


def lint(case: Case, folder: Path) -> list[Finding]:
    return list(lint_function(function(case, folder), "fp16/tried.mlpackage"))


def written(mb: Any, x: Any, cache: Any) -> Any:
    rows = mb.scatter(
        data=mb.read_state(input=cache), indices=np.array([2], np.int32), updates=x, axis=0, mode="update"
    )
    return mb.coreml_update_state(state=cache, value=rows)


def first_length(mb: Any, x: Any) -> Any:
    return mb.gather(x=mb.shape(x=x), indices=np.int32(0), axis=0)


def redeclared(kind: str, *shape: int) -> Callable[[Any], None]:
    """Change the shape that is declared for the first operation of a kind."""

    def damage(specification: Any) -> None:
        (block,) = specification.mlProgram.functions["main"].block_specializations.values()
        operation = next(operation for operation in block.operations if operation.type == kind)
        tensor = operation.outputs[0].type.tensorType
        del tensor.dimensions[:]
        for length in shape:
            tensor.dimensions.add().constant.size = length
        tensor.rank = len(shape)

    return damage


def more_inputs(specification: Any) -> None:
    inputs = specification.mlProgram.functions["main"].inputs
    inputs.add().CopyFrom(inputs[0])
    inputs[-1].name = "more"


def of_integers(specification: Any) -> None:
    specification.description.input[0].type.multiArrayType.dataType = 131104


def returning_nothing(specification: Any) -> None:
    specification.description.output[0].name = "z"


WEIGHT = np.arange(64, dtype=HALF).reshape(8, 8)
TAPS = np.ones((2, 3, 4), HALF)
LENGTHS = {"x": ((1, 3), 4)}


def infinite(mb: Any, x: Any) -> Any:
    return mb.add(x=x, y=np.array([0, 1, np.inf, 2], HALF))


CASES: dict[str, list[Case]] = {
    "broadcast": [
        Case(
            lambda mb, x, y: mb.select(cond=mb.greater(x=y, y=HALF(0)), a=x, b=x),
            inputs={"x": (4, 4), "y": (4, 1)},
        ),
        Case(lambda mb, x: mb.select(cond=mb.greater(x=x, y=HALF(0)), a=HALF(0), b=HALF(-1))),
        Case(lambda mb, x: mb.mul(x=x, y=x), damage=redeclared("mul", 4, 1)),
        Case(lambda mb, x: mb.mul(x=x, y=x), damage=redeclared("mul", 1, 4, 4)),
    ],
    "value-shaped": [
        Case(
            lambda mb, x: mb.range_1d(start=np.int32(0), end=first_length(mb, x), step=np.int32(1)),
            inputs=LENGTHS,
            returned="int32",
        ),
        Case(
            lambda mb, x: mb.reshape(
                x=x, shape=mb.concat(values=[first_length(mb, x), np.int32(2), np.int32(2)], axis=0)
            ),
            inputs=LENGTHS,
        ),
        Case(
            lambda mb, x: mb.slice_by_index(
                x=x, begin=[0, 0], end=mb.shape(x=x), begin_mask=[True, True], end_mask=[True, False]
            ),
            inputs=LENGTHS,
        ),
    ],
    "rank": [Case(lambda mb, x: mb.reduce_sum(x=mb.reshape(x=x, shape=[1, 2, 2, 2, 2]), axes=[0]))],
    "long-axis": [
        Case(lambda mb, x: mb.tanh(x=x), inputs={"x": (1, 16_385)}),
        Case(lambda mb, x: mb.tanh(x=x), inputs={"x": (1, (2, 16_400))}),
        Case(lambda mb, x: mb.reshape(x=x, shape=[1, -1]), inputs={"x": (200, (2, 100))}),
    ],
    "declared-shape": [
        Case(lambda mb, x: mb.tanh(x=x), damage=redeclared("tanh", 4, 5)),
        Case(lambda mb, x: mb.tanh(x=x), damage=redeclared("tanh", 4)),
        Case(
            lambda mb, x: mb.matmul(x=x, y=x, transpose_y=True),
            inputs=LENGTHS,
            damage=redeclared("matmul", 3, 3),
        ),
        # There is no ONNX form of it here, so no shapes either.
        Case(lambda mb, x: mb.band_part(x=x, lower=0, upper=0)),
    ],
    "scatter-into-state": [Case(written, inputs={"x": (1, 4)}, state=(6, 4), target="macOS15")],
    "float32": [
        Case(lambda mb, x: mb.cast(x=mb.sin(x=x), dtype="fp16"), dtype="float32", returned="compute"),
        Case(lambda mb, x: mb.tanh(x=mb.cast(x=x, dtype="fp32")), returned="float32"),
    ],
    "infinite-constant": [
        Case(infinite),
        Case(lambda mb, x: mb.clip(x=x, alpha=HALF(-np.inf), beta=HALF(0))),
        Case(
            lambda mb, x: mb.linear(x=x, weight=np.where(WEIGHT == 17, np.nan, WEIGHT)), inputs={"x": (2, 8)}
        ),
    ],
    "cropped-convolution": [
        Case(
            lambda mb, x: mb.slice_by_index(
                x=mb.conv_transpose(x=x, weight=TAPS, strides=[2]), begin=[0, 0, 2], end=[1, 3, 8]
            ),
            inputs={"x": (1, 2, 4)},
        ),
    ],
    "shaped-convolution": [
        Case(
            lambda mb, x: mb.conv_transpose(x=x, weight=TAPS, strides=[2], output_shape=[1, 3, 11]),
            inputs={"x": (1, 2, 4)},
        ),
    ],
    "interface": [
        Case(lambda mb, x: mb.tanh(x=x), damage=more_inputs),
        Case(lambda mb, x: mb.tanh(x=x), damage=of_integers),
        Case(lambda mb, x: mb.tanh(x=x), damage=returning_nothing),
    ],
    "target": [
        Case(
            lambda mb, x: mb.linear(
                x=x,
                weight=mb.constexpr_blockwise_shift_scale(
                    data=WEIGHT.astype(np.int8), scale=np.ones((8, 1), HALF)
                ),
            ),
            inputs={"x": (2, 8)},
            target="macOS15",
            linted_as="macOS14",
        ),
    ],
    "weight-file": [Case(lambda mb, x: mb.linear(x=x, weight=WEIGHT), inputs={"x": (2, 8)})],
}

CLEAN = [
    Case(lambda mb, x: mb.linear(x=x, weight=WEIGHT, bias=WEIGHT[0]), inputs={"x": (2, 8)}),
    # One row at a computed place: its size is known.
    Case(
        lambda mb, x: mb.slice_by_index(
            x=x,
            begin=mb.concat(values=[first_length(mb, x), np.int32(0)], axis=0),
            end=[0, 0],
            begin_mask=[False, True],
            end_mask=[False, True],
            squeeze_mask=[True, False],
        ),
        inputs=LENGTHS,
    ),
    Case(lambda mb, x: mb.sin(x=x), dtype="float32", precision="fp32"),
    Case(lambda mb, x: mb.cast(x=mb.tanh(x=mb.cast(x=x, dtype="fp16")), dtype="fp32"), dtype="float32"),
    Case(lambda mb, x: mb.tanh(x=x), inputs={"x": (1, (2, 16_384))}),
    Case(lambda mb, x: mb.matmul(x=x, y=x, transpose_y=True), inputs={"x": (1, 2, (1, 3), 4)}),
]


def test_every_rule_has_a_program_that_breaks_it() -> None:
    assert list(CASES) == [rule.name for rule in RULES]
    assert {acceptance.rule for acceptance in ACCEPTED} <= CASES.keys()


@pytest.mark.parametrize(
    ("rule", "case"),
    [(rule, case) for rule, cases in CASES.items() for case in cases],
    ids=[f"{rule}-{n}" for rule, cases in CASES.items() for n in range(len(cases))],
)
def test_a_program_breaks_its_rule_and_no_other(
    rule: str, case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if rule == "weight-file":
        monkeypatch.setattr(interface, "LARGEST_WEIGHT_FILE", 100)

    findings = lint(case, tmp_path)

    assert {finding.rule for finding in findings} == {rule}
    assert not any(finding.accepted for finding in findings)


@pytest.mark.parametrize("case", CLEAN)
def test_a_program_that_breaks_no_rule_has_no_findings(case: Case, tmp_path: Path) -> None:
    assert lint(case, tmp_path) == []


def test_scatters_of_a_batch_are_reported_as_accepted(tmp_path: Path) -> None:
    (case,) = CASES["scatter-into-state"]

    (finding,) = lint(replace(case, batch=3), tmp_path)

    assert finding.rule == "scatter-into-state"
    assert "several utterances" in (finding.accepted or "")


def test_a_finding_says_where_it_is_what_was_found_and_why(tmp_path: Path) -> None:
    case = Case(lambda mb, x: mb.tanh(x=x, name="long"), inputs={"x": (1, (2, 16_400))})

    entrance, result = lint(case, tmp_path)

    assert (entrance.operation, entrance.kind) == ("x", "input")
    assert (result.package, result.function) == ("fp16/tried.mlpackage", "main")
    assert (result.operation, result.kind, result.rule) == ("long", "tanh", "long-axis")
    assert result.found == "(1, 16400) with x (1, 16400)"
    assert result.expected == "at most 16384 elements along an axis"
    assert "Neural Engine" in result.why
    assert "FluidInference/FluidAudio 121" in result.sources


def test_the_way_to_a_computed_size_is_told(tmp_path: Path) -> None:
    (finding,) = lint(CASES["value-shaped"][0], tmp_path)

    assert finding.found == "end is computed: shape → gather → range_1d"


def test_a_selection_between_scalars_is_found_with_its_operands(tmp_path: Path) -> None:
    (finding,) = lint(CASES["broadcast"][1], tmp_path)

    assert finding.found == "operands (4, 4) and () and ()"
    assert finding.expected == "all three (4, 4)"


def test_a_large_weight_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "_ELEMENTS", 10)
    (*_, case) = CASES["infinite-constant"]

    assert [finding.found for finding in lint(case, tmp_path)] == ["nan"]
