"""Each rule of the lint has a small program that breaks it, and no other rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from voxcpm_constants.step_models import Precision
from voxcpm_constants.targets import Target
from voxcpm_validation.lint import interface
from voxcpm_validation.lint.report import Finding
from voxcpm_validation.lint.rules import RULES

Lint = Callable[["Case"], list[Finding]]

HALF = np.float16
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
    also: frozenset[str] = frozenset()
    """Other rules that it breaks."""
    damage: Callable[[Any], object] = lambda specification: None


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


def returning_another(specification: Any) -> None:
    specification.description.output[0].name = "z"


def of_any_length(specification: Any) -> None:
    described = specification.description.input[0].type.multiArrayType
    described.ClearField("enumeratedShapes")
    for upper in (8, 4):
        described.shapeRange.sizeRanges.add(lowerBound=upper // 4, upperBound=upper)


def of_macos_14(specification: Any) -> None:
    specification.specificationVersion = 8


def attended(mb: Any, x: Any, mask: Any) -> Any:
    scores = mb.add(x=mb.matmul(x=x, y=x, transpose_y=True), y=mask)
    return mb.matmul(x=mb.softmax(x=scores, axis=-1), y=x)


def blockwise(mb: Any, dtype: Any) -> Any:
    data = (np.arange(64) % 8).astype(dtype).reshape(8, 8)
    return mb.constexpr_blockwise_shift_scale(data=data, scale=np.ones((8, 1), HALF))


WEIGHT = np.arange(64, dtype=HALF).reshape(8, 8)
TAPS = np.ones((2, 3, 4), HALF)
LENGTHS = {"x": ((1, 3), 4)}


def infinite(mb: Any, x: Any) -> Any:
    return mb.add(x=x, y=np.array([0, 1, np.inf, 2], HALF))


def transposed(mb: Any, x: Any, **options: Any) -> Any:
    return mb.conv_transpose(x=x, weight=TAPS, strides=[2], **options)


def added_positions(mb: Any, x: Any) -> Any:
    """Integers of two axes, which ONNX would take for sizes of tensors."""
    rows, columns = (mb.cast(x=mb.reduce_sum(x=x, axes=[axis]), dtype="int32") for axis in (1, 0))
    columns = mb.sub(x=mb.cumsum(x=columns, axis=0), y=np.int32(1))
    return mb.cast(x=mb.add(x=mb.expand_dims(x=rows, axes=[1]), y=columns), dtype="fp16")


SCATTERS = frozenset({"scatter-into-state"})
CASES: dict[str, list[Case]] = {
    "select": [
        Case(lambda mb, x: mb.select(cond=mb.greater(x=x, y=HALF(0)), a=x, b=x)),
        Case(
            lambda mb, x: mb.cast(x=mb.cast(x=mb.cast(x=x, dtype="uint16"), dtype="int32"), dtype="fp16"),
        ),
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
        Case(lambda mb, x: mb.mul(x=x, y=x), damage=redeclared("mul", 4, 1)),
        Case(lambda mb, x: mb.mul(x=x, y=x), damage=redeclared("mul", 1, 4, 4)),
        Case(
            lambda mb, x: mb.matmul(x=x, y=x, transpose_y=True),
            inputs=LENGTHS,
            damage=redeclared("matmul", 3, 3),
        ),
        # There is no ONNX form of it here, so no shapes either.
        Case(lambda mb, x: mb.band_part(x=x, lower=0, upper=0)),
    ],
    "dynamic-input": [
        Case(
            lambda mb, x: mb.tanh(x=x),
            inputs=LENGTHS,
            damage=of_any_length,
            also=frozenset({"interface"}),
        )
    ],
    "state-size": [
        Case(
            written,
            inputs={"x": (1, 32)},
            state=(100, 32),
            target="macOS15",
            also=SCATTERS,
        ),
        Case(
            written,
            inputs={"x": (1, 270)},
            state=(64, 270),
            target="macOS15",
            also=SCATTERS,
        ),
    ],
    "masked-batch": [
        Case(attended, inputs={"x": (10, 2, 4, 8), "mask": (4, 4)}),
        Case(attended, inputs={"x": (2, 10, (1, 4), 8), "mask": (1, 1)}),
    ],
    "blockwise-scale": [
        Case(
            lambda mb, x: mb.linear(x=x, weight=blockwise(mb, np.int8)),
            inputs={"x": (2, 8)},
            target="macOS15",
        )
    ],
    "scatter-into-state": [Case(written, inputs={"x": (1, 32)}, state=(64, 32), target="macOS15")],
    "float32": [
        Case(lambda mb, x: mb.cast(x=mb.sin(x=x), dtype="fp16"), dtype="float32", returned="compute"),
        Case(lambda mb, x: mb.tanh(x=mb.cast(x=x, dtype="fp32")), returned="float32"),
        Case(
            lambda mb, x: mb.cast(x=mb.greater(x=x, y=np.float32(0)), dtype="fp16"),
            dtype="float32",
            returned="compute",
        ),
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
            lambda mb, x: mb.slice_by_index(x=transposed(mb, x), begin=[0, 0, 2], end=[1, 3, 8]),
            inputs={"x": (1, 2, 4)},
        ),
    ],
    "padded-convolution": [
        Case(lambda mb, x: transposed(mb, x, output_shape=[1, 3, 11]), inputs={"x": (1, 2, 4)}),
        Case(lambda mb, x: transposed(mb, x, pad_type="custom", pad=[2, 0]), inputs={"x": (1, 2, 4)}),
    ],
    "interface": [
        Case(lambda mb, x: mb.tanh(x=x), damage=more_inputs),
        Case(lambda mb, x: mb.tanh(x=x), damage=of_integers),
        Case(lambda mb, x: mb.tanh(x=x), damage=returning_another),
        Case(lambda mb, x: mb.tanh(x=x), returned="int32"),
    ],
    "target": [
        Case(lambda mb, x: mb.tanh(x=x), target="macOS15", linted_as="macOS14"),
        Case(
            lambda mb, x: mb.linear(x=x, weight=blockwise(mb, np.int8)),
            inputs={"x": (2, 8)},
            precision="int8",
            target="macOS15",
            linted_as="macOS14",
            damage=of_macos_14,
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
    Case(added_positions, inputs={"x": (3, (2, 16))}),
    Case(
        lambda mb, x: transposed(mb, x, pad_type="custom", pad=[2, 2], output_shape=[1, 3, 6]),
        {"x": (1, 2, 4)},
    ),
    Case(lambda mb, x: transposed(mb, x, dilations=[2], output_shape=[1, 3, 13]), {"x": (1, 2, 4)}),
    Case(lambda mb, x: mb.matmul(x=x, y=x, transpose_y=True), inputs={"x": (1, 2, (1, 3), 4)}),
    Case(attended, inputs={"x": (2, 9, 16, 8), "mask": (16, 16)}),
    # As the DiT's: without a mask.
    Case(
        lambda mb, x: mb.matmul(x=mb.softmax(x=mb.matmul(x=x, y=x, transpose_y=True), axis=-1), y=x),
        inputs={"x": (20, 2, 4, 8)},
    ),
]


def test_every_rule_has_a_program_that_breaks_it() -> None:
    assert list(CASES) == [rule.name for rule in RULES]


@pytest.mark.parametrize(
    ("rule", "case"),
    [(rule, case) for rule, cases in CASES.items() for case in cases],
    ids=[f"{rule}-{n}" for rule, cases in CASES.items() for n in range(len(cases))],
)
def test_a_program_breaks_its_rule_and_no_other(
    lint: Lint, rule: str, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    if rule == "weight-file":
        monkeypatch.setattr(interface, "LARGEST_WEIGHT_FILE", 100)

    findings = lint(case)

    assert {finding.rule for finding in findings if not finding.accepted} == {rule, *case.also}


@pytest.mark.parametrize("case", CLEAN)
def test_a_program_that_breaks_no_rule_has_no_findings(lint: Lint, case: Case) -> None:
    assert lint(case) == []


def test_a_finding_says_where_it_is_what_was_found_and_why(lint: Lint) -> None:
    case = Case(lambda mb, x: mb.tanh(x=x, name="long"), inputs={"x": (1, (2, 16_400))})

    entrance, result = lint(case)

    assert (entrance.operation, entrance.kind) == ("x", "input")
    assert (result.package, result.function) == ("fp16/tried.mlpackage", "main")
    assert (result.operation, result.kind, result.rule) == ("long", "tanh", "long-axis")
    assert result.found == "(1, 16400) with x (1, 16400)"
    assert result.expected == "at most 16384 elements along an axis"
    assert "Neural Engine" in result.why
    assert "FluidInference/FluidAudio 121" in result.sources


def test_half_bytes_and_their_operation_are_of_macos_15(lint: Lint) -> None:
    from coremltools.converters.mil.mil.types import np_int4_dtype

    case = Case(
        lambda mb, x: mb.linear(x=x, weight=blockwise(mb, np_int4_dtype)),
        inputs={"x": (2, 8)},
        precision="int4",
        target="macOS15",
    )

    (risk,) = lint(case)
    assert risk.rule == "blockwise-scale"
    assert "a risk on macOS 26" in (risk.accepted or "")
    found = {f.found for f in lint(replace(case, linted_as="macOS14")) if not f.accepted}
    assert found == {
        "specification version 9", "elements of half a byte", "constexpr_blockwise_shift_scale",
    }  # fmt: skip
