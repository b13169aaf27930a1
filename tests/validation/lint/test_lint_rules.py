from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from mil_programs import converted
from voxcpm_constants.step_models import Precision, StepModel, TensorSpec
from voxcpm_conversion.core_ml.toolchain import import_coremltools
from voxcpm_runtime.backends.portable.package import MODEL_FILE, read_specification
from voxcpm_validation.lint import checks
from voxcpm_validation.lint.bundle import lint_function
from voxcpm_validation.lint.function import read_function
from voxcpm_validation.lint.rules import RULES

STATE = "cache"
SCATTER = frozenset({"scatter-into-state"})
# An operation without an ONNX form has no shapes either.
UNKNOWN = frozenset({"declared-shape"})
HALF = np.float16
SQUARE = {"x": (4, 4)}


@dataclass(frozen=True)
class Case:
    """A program, its declaration, and the damage to the saved package."""

    build: Callable[..., Any]
    """(Builder, **inputs) → the MIL value that the program returns."""
    inputs: Mapping[str, tuple[Any, ...]] = field(default_factory=lambda: SQUARE)
    """Shapes; an axis that is a tuple has several lengths."""
    state: tuple[int, ...] = ()
    dtype: str = "compute"
    precision: Precision = "fp16"
    also: frozenset[str] = frozenset()
    """Other rules that it violates."""
    damage: Callable[[Any], object] = lambda specification: None


def _declared(case, *outputs):
    def tensors(shapes, dtype):
        return tuple(TensorSpec(name=n, shape=s, dtype=dtype, meaning="") for n, s in shapes.items())

    return StepModel(
        name="tried",
        inputs=tensors(case.inputs, case.dtype),
        outputs=tensors(dict.fromkeys(outputs, (1,)), case.dtype),
        state=tensors({STATE: case.state} if case.state else {}, "compute"),
    )


def _converted(case):
    """The case's program as an MLModel, without coremltools' optimisations, which would fix some programs."""
    ct = import_coremltools()
    from coremltools.converters.mil import Builder
    from coremltools.converters.mil.mil import types

    model = _declared(case)
    dtype = types.fp32 if case.dtype == "float32" else types.fp16
    specs = {t.name: Builder.TensorSpec(_symbolic(t.shape), dtype=dtype) for t in model.inputs}
    specs |= {t.name: Builder.StateTensorSpec(t.shape_at(0), dtype=types.fp16) for t in model.state}
    flexible = [
        ct.TensorType(
            name=t.name, shape=ct.EnumeratedShapes([t.shape_at(n) for n in range(model.chunk_count)])
        )
        for t in model.inputs
        if t.shape != t.shape_at(0)
    ]
    build, pipeline = partial(case.build, Builder), ct.PassPipeline.EMPTY
    return converted(build, specs, "macOS15", inputs=flexible or None, pass_pipeline=pipeline)


def _symbolic(shape):
    from coremltools.converters.mil.mil import get_new_symbol

    return tuple(get_new_symbol() if isinstance(axis, tuple) else axis for axis in shape)


def lint(case, folder):
    """The findings in the case's damaged package."""
    path = folder / "tried.mlpackage"
    _converted(case).save(str(path))
    specification = read_specification(path)
    case.damage(specification)
    outputs = [output.name for output in specification.description.output]
    (path / MODEL_FILE).write_bytes(specification.SerializeToString())
    function = read_function(path, "main", _declared(case, *outputs), precision=case.precision)
    return list(lint_function(function, "fp16/tried.mlpackage", RULES))


def written(mb, x, cache):
    rows = mb.scatter(
        data=mb.read_state(input=cache), indices=np.array([2], np.int32), updates=x, axis=0, mode="update"
    )
    return mb.coreml_update_state(state=cache, value=rows)


def first_length(mb, x):
    return mb.gather(x=mb.shape(x=x), indices=np.int32(0), axis=0)


def redeclared(kind, *shape):
    """Change the shape that is declared for the first operation of a kind."""

    def damage(specification):
        (block,) = specification.mlProgram.functions["main"].block_specializations.values()
        operation = next(operation for operation in block.operations if operation.type == kind)
        tensor = operation.outputs[0].type.tensorType
        del tensor.dimensions[:]
        for length in shape:
            tensor.dimensions.add().constant.size = length
        tensor.rank = len(shape)

    return damage


def of_any_length(specification):
    described = specification.description.input[0].type.multiArrayType
    described.ClearField("enumeratedShapes")
    for upper in (8, 4):
        described.shapeRange.sizeRanges.add(lowerBound=upper // 4, upperBound=upper)


def attended(mb, x, mask):
    scores = mb.add(x=mb.matmul(x=x, y=x, transpose_y=True), y=mask)
    return mb.matmul(x=mb.softmax(x=scores, axis=-1), y=x)


def blockwise(mb):
    data = (np.arange(64) % 8).astype(np.int8).reshape(8, 8)
    return mb.constexpr_blockwise_shift_scale(data=data, scale=np.ones((8, 1), HALF))


WEIGHT = np.arange(64, dtype=HALF).reshape(8, 8)
TAPS = np.ones((2, 3, 4), HALF)
LENGTHS = {"x": ((1, 3), 4)}


def infinite(mb, x):
    return mb.add(x=x, y=np.array([0, 1, np.inf, 2], HALF))


def transposed(mb, x, **options):
    return mb.conv_transpose(x=x, weight=TAPS, strides=[2], **options)


def added_positions(mb, x):
    """Integers of two axes, which ONNX would mistake for tensor sizes."""
    rows, columns = (mb.cast(x=mb.reduce_sum(x=x, axes=[axis]), dtype="int32") for axis in (1, 0))
    columns = mb.sub(x=mb.cumsum(x=columns, axis=0), y=np.int32(1))
    return mb.cast(x=mb.add(x=mb.expand_dims(x=rows, axes=[1]), y=columns), dtype="fp16")


CASES: dict[str, list[Case]] = {
    "select": [
        Case(lambda mb, x: mb.select(cond=mb.greater(x=x, y=HALF(0)), a=x, b=x)),
        Case(lambda mb, x: mb.cast(x=mb.cast(x=mb.cast(x=x, dtype="uint16"), dtype="int32"), dtype="fp16")),
    ],
    "value-shaped": [
        Case(
            lambda mb, x: mb.range_1d(start=np.int32(0), end=first_length(mb, x), step=np.int32(1)),
            inputs=LENGTHS,
            also=UNKNOWN,
        ),
        Case(
            lambda mb, x: mb.slice_by_index(
                x=x, begin=[0, 0], end=mb.shape(x=x), begin_mask=[True, True], end_mask=[True, False]
            ),
            inputs=LENGTHS,
            also=UNKNOWN,
        ),
    ],
    "rank": [Case(lambda mb, x: mb.reduce_sum(x=mb.reshape(x=x, shape=[1, 2, 2, 2, 2]), axes=[0]))],
    "long-axis": [
        Case(lambda mb, x: mb.tanh(x=x), inputs={"x": (1, (2, 16_400))}),
        Case(lambda mb, x: mb.reshape(x=x, shape=[1, -1]), inputs={"x": (200, (2, 100))}),
    ],
    "declared-shape": [
        Case(lambda mb, x: mb.tanh(x=x), damage=redeclared("tanh", 4, 5)),
        Case(
            lambda mb, x: mb.matmul(x=x, y=x, transpose_y=True),
            inputs=LENGTHS,
            damage=redeclared("matmul", 3, 3),
        ),
        # It has no ONNX form, so no shapes either.
        Case(lambda mb, x: mb.band_part(x=x, lower=0, upper=0)),
    ],
    "dynamic-input": [Case(lambda mb, x: mb.tanh(x=x), inputs=LENGTHS, damage=of_any_length)],
    "state-size": [Case(written, inputs={"x": (1, 32)}, state=(100, 32), also=SCATTER)],
    "masked-batch": [Case(attended, inputs={"x": (10, 2, 4, 8), "mask": (4, 4)})],
    "blockwise-scale": [Case(lambda mb, x: mb.linear(x=x, weight=blockwise(mb)), inputs={"x": (2, 8)})],
    "scatter-into-state": [Case(written, inputs={"x": (1, 32)}, state=(64, 32))],
    "float32": [
        Case(lambda mb, x: mb.cast(x=mb.sin(x=x), dtype="fp16"), dtype="float32"),
        Case(lambda mb, x: mb.tanh(x=mb.cast(x=x, dtype="fp32"))),
    ],
    "infinite-constant": [
        Case(infinite),
        Case(
            lambda mb, x: mb.linear(x=x, weight=np.where(WEIGHT == 17, np.nan, WEIGHT)), inputs={"x": (2, 8)}
        ),
    ],
    "cropped-convolution": [
        Case(
            lambda mb, x: mb.slice_by_index(x=transposed(mb, x), begin=[0, 0, 2], end=[1, 3, 8]),
            inputs={"x": (1, 2, 4)},
        )
    ],
    "padded-convolution": [
        Case(lambda mb, x: transposed(mb, x, output_shape=[1, 3, 11]), inputs={"x": (1, 2, 4)}),
        Case(lambda mb, x: transposed(mb, x, pad_type="custom", pad=[2, 0]), inputs={"x": (1, 2, 4)}),
    ],
    "weight-file": [Case(lambda mb, x: mb.linear(x=x, weight=WEIGHT), inputs={"x": (2, 8)})],
}

CLEAN = [
    # One row at a computed position has a known size.
    Case(lambda mb, x: mb.sin(x=x), dtype="float32", precision="fp32"),
    Case(lambda mb, x: mb.cast(x=mb.tanh(x=mb.cast(x=x, dtype="fp16")), dtype="fp32"), dtype="float32"),
    Case(lambda mb, x: mb.tanh(x=x), inputs={"x": (1, (2, 16_384))}),
    Case(added_positions, inputs={"x": (3, (2, 16))}),
    Case(lambda mb, x: transposed(mb, x, dilations=[2], output_shape=[1, 3, 13]), {"x": (1, 2, 4)}),
    Case(lambda mb, x: mb.matmul(x=x, y=x, transpose_y=True), inputs={"x": (1, 2, (1, 3), 4)}),
    Case(attended, inputs={"x": (2, 9, 16, 8), "mask": (16, 16)}),
]


@pytest.mark.parametrize(
    ("rule", "case"),
    [pytest.param(r.name, case, id=f"{r.name}-{n}") for r in RULES for n, case in enumerate(CASES[r.name])],
)
def test_program_violates_only_its_rule(tmp_path, rule, case, monkeypatch):
    if rule == "weight-file":
        monkeypatch.setattr(checks, "MAX_WEIGHT_FILE_BYTES", 100)
    findings = lint(case, tmp_path)
    assert {finding.rule for finding in findings if not finding.accepted} == {rule, *case.also}


@pytest.mark.parametrize("case", CLEAN)
def test_conforming_program_has_no_findings(tmp_path, case):
    assert lint(case, tmp_path) == []


def test_fp16_scales_of_compressed_weights_are_an_accepted_risk(tmp_path):
    (case,) = CASES["blockwise-scale"]
    (risk,) = lint(replace(case, precision="int8"), tmp_path)
    assert risk.rule == "blockwise-scale"
    assert "a risk on macOS 26" in (risk.accepted or "")
