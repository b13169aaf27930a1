"""One function of a package for the rules: its program, its declaration, and its shapes at each length.

ONNX infers the shapes from the lowered graph and the input lengths, ignoring all shapes that coremltools declared, so
that wrong declarations are found.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from onnx import ModelProto, NodeProto, helper, shape_inference

from voxcpm_constants.step_models import Precision, StepModel
from voxcpm_runtime.backends.portable.graph import UnsupportedOperationError, value_info
from voxcpm_runtime.backends.portable.lowered import GRAPH_DTYPES
from voxcpm_runtime.backends.portable.lowering import IR_VERSION, OPSETS, translate, without_states
from voxcpm_runtime.backends.portable.package import (
    Argument,
    Blob,
    Constant,
    Operation,
    Program,
    TensorType,
    read_package,
    read_specification,
    tensor_type,
)

Shape = tuple[int | None, ...]

# Kinds of findings that are not about an operation.
INPUT = "input"
PROGRAM = "program"


class Violation(NamedTuple):
    """What a rule found at an operation, and what it expects."""

    operation: str
    kind: str
    found: str
    expected: str


@dataclass(frozen=True)
class Function:
    """One function of a package, with the declaration of the step model that it computes.

    `parameters` are the inputs of the MIL function itself, including states; `program.inputs` and `program.states`
    are those of the model description. `is_first`: checks of the whole package run on this function.
    """

    name: str
    program: Program
    parameters: Mapping[str, TensorType]
    declared: StepModel
    precision: Precision
    is_first: bool

    @cached_property
    def lengths(self) -> tuple[Length, ...]:
        """The function's shapes at each enumerated length."""
        return infer_lengths(self.program, self.declared)

    @cached_property
    def constants(self) -> dict[str, Constant]:
        """The values of `const` operations by name."""
        return {op.name: op.attributes["val"] for op in self.program.operations if op.kind == "const"}

    @cached_property
    def producers(self) -> dict[str, Operation]:
        """The operation that computes each value."""
        return {name: op for op in self.program.operations for name, _ in op.outputs}

    @cached_property
    def types(self) -> dict[str, TensorType]:
        """The declared type of every value."""
        return dict(self.parameters) | {n: t for op in self.program.operations for n, t in op.outputs}

    @cached_property
    def computed(self) -> frozenset[str]:
        """Names of the values that depend on an input or a state; all others are known before the first call."""
        found = set(self.parameters)
        for operation in self.program.operations:
            if any(name in found for name in _names(operation)):
                found.update(name for name, _ in operation.outputs)
        return frozenset(found)

    @property
    def operation_count(self) -> int:
        """Operations that compute something."""
        return sum(operation.kind != "const" for operation in self.program.operations)

    def values(self) -> Iterator[tuple[str, str, TensorType]]:
        """(name, kind of operation, declared type) of every tensor that is not a constant, inputs and states first."""
        yield from ((name, INPUT, type_) for name, type_ in self.parameters.items())
        for operation in self.program.operations:
            if operation.kind != "const" and not operation.kind.startswith("constexpr"):
                yield from ((name, operation.kind, type_) for name, type_ in operation.outputs)

    def is_computed(self, argument: Argument) -> bool:
        """Whether an argument of an operation depends on an input or a state."""
        return isinstance(argument, str) and argument in self.computed

    def type(self, argument: Argument) -> TensorType:
        """The declared type of an argument of an operation."""
        return self.types[argument] if isinstance(argument, str) else argument.type

    def constant(self, operation: Operation, name: str, default: Any) -> Any:
        """A constant input as a Python value; the default if the input is absent or computed."""
        (argument,) = operation.inputs.get(name, (None,))
        constant = self.constants.get(argument) if isinstance(argument, str) else argument
        if constant is None or isinstance(constant.data, str):
            return default if constant is None else constant.data
        data = constant.data
        return (self.program.read(data) if isinstance(data, Blob) else data).tolist()

    def shape(self, argument: Argument, length: Length) -> Shape:
        """The shape of an argument at one length: inferred, or declared if inference failed."""
        declared = self.type(argument).shape
        return length.shapes.get(argument, declared) if isinstance(argument, str) else declared

    def at(self, length: Length) -> str:
        """A suffix for the length, if the function accepts several: ` with audio (1, 1, 7056)`."""
        return f" with {length.label}" if len(self.lengths) > 1 else ""


def read_function(
    package: Path, name: str, declared: StepModel, *, precision: Precision, is_first: bool = True
) -> Function:
    """Read one function of a package. Raises PackageError for a package that is incomplete or damaged."""
    inputs = read_specification(package).mlProgram.functions[name].inputs
    parameters = {value.name: tensor_type(value.type) for value in inputs}
    return Function(name, read_package(package, name), parameters, declared, precision, is_first)


def violation(operation: Operation, found: str, expected: str) -> Violation:
    """A violation at an operation. One without a result, which writes a state, is named after the state."""
    names = [name for name, _ in operation.outputs] or list(_names(operation))
    return Violation(names[0], operation.kind, found, expected)


def constants_of(operation: Operation) -> Iterator[Constant]:
    """The constants inside an operation: a `const` operation's value, or unnamed inputs."""
    given = (
        *operation.attributes.values(),
        *(a for arguments in operation.inputs.values() for a in arguments),
    )
    return (argument for argument in given if isinstance(argument, Constant))


def format_shape(shape: Shape) -> str:
    """A shape as text, with `?` for an unknown axis: `(1, ?, 64)`."""
    return "(" + ", ".join("?" if axis is None else str(axis) for axis in shape) + ")"


def shapes_match(declared: Shape, actual: Shape) -> bool:
    """Whether two shapes have the same rank, and equal lengths wherever both are known."""
    return len(declared) == len(actual) and all(
        a is None or b is None or a == b for a, b in zip(declared, actual, strict=True)
    )


def _names(operation: Operation) -> Iterator[str]:
    return (a for arguments in operation.inputs.values() for a in arguments if isinstance(a, str))


# ONNX Runtime's own matrix product with transposed factors, which ONNX does not know.
_FUSED_PRODUCT = "FusedMatMul"


@dataclass(frozen=True)
class Length:
    """One enumerated length of the inputs, and the shape of each value at it."""

    label: str
    """The input that has the length and its shape: `embeddings (1, 16, 1024)`."""
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """MIL value → its shape, for each value whose shape was inferred completely."""
    failure: str = ""
    """Why not all shapes could be inferred."""


def infer_lengths(program: Program, declared: StepModel) -> tuple[Length, ...]:
    """The shapes of a program's values at each length that the declaration lists; none if it cannot be lowered."""
    tensor, _ = declared.chunk_axis
    chunks = range(declared.chunk_count)
    labels = [f"{tensor.name} ({', '.join(map(str, tensor.shape_at(chunk)))})" for chunk in chunks]
    pure = without_states(program)
    try:
        graph, values, _ = translate(pure, "faithful")
    except UnsupportedOperationError as error:
        return (Length(labels[0], failure=str(error)),)
    ranks = {i.name: len(i.shapes[0]) for i in pure.inputs}
    ranks |= {name: len(type_.shape) for op in pure.operations for name, type_ in op.outputs}
    nodes = list(
        _expand_products(graph.nodes, {value: ranks[name] for name, value in values.items() if name in ranks})
    )
    weights = [*graph.initializers.values(), *map(graph.external, graph.weights.values())]
    lengths = []
    for chunk in chunks:
        fixed = {t.name: t.shape_at(chunk) for t in (*declared.inputs, *declared.state)}
        inputs = [
            value_info(
                i.name,
                GRAPH_DTYPES[i.dtype],
                fixed.get(i.name) or i.fixed_shape or [None for _ in i.shapes[0]],
            )
            for i in pure.inputs
        ]
        # Without outputs, whose declared shapes would influence the inference.
        model = helper.make_model(
            helper.make_graph(nodes, "main", inputs, [], weights),
            opset_imports=[helper.make_opsetid(*opset) for opset in OPSETS],
            ir_version=IR_VERSION,
        )
        inferred, failure = _infer_shapes(model)
        shapes = {name: inferred[value] for name, value in values.items() if value in inferred}
        lengths.append(Length(labels[chunk], shapes, failure))
    return tuple(lengths)


def _expand_products(nodes: Sequence[NodeProto], ranks: Mapping[str, int]) -> Iterator[NodeProto]:
    """The nodes, with each fused product expanded to transposes and a product."""
    for node in nodes:
        if node.op_type != _FUSED_PRODUCT:
            yield node
            continue
        transposed = {attribute.name for attribute in node.attribute if attribute.i}
        factors = list(node.input)
        for index, attribute in enumerate(("transA", "transB")):
            if attribute in transposed:
                # A weight without a MIL value is a matrix.
                *leading, rows, columns = range(ranks.get(factors[index], 2))
                name, perm = f"{node.name}/{attribute}", [*leading, columns, rows]
                yield helper.make_node("Transpose", [factors[index]], [name], name=name, perm=perm)
                factors[index] = name
        yield helper.make_node("MatMul", factors, list(node.output), name=node.name)


def _infer_shapes(model: ModelProto) -> tuple[dict[str, tuple[int, ...]], str]:
    """The complete shapes by ONNX name, and why the others could not be inferred."""
    failure = ""
    # With data propagation ONNX follows computed sizes, but treats every integer sum as one, and rejects sums over
    # several axes. Real mismatches fail without it, too.
    for propagated in (True, False):
        try:
            return _shapes(shape_inference.infer_shapes(model, strict_mode=True, data_prop=propagated)), ""
        except shape_inference.InferenceError as error:  # noqa: PERF203 - two ways
            failure = str(error)
    return _shapes(shape_inference.infer_shapes(model)), failure


def _shapes(model: ModelProto) -> dict[str, tuple[int, ...]]:
    tensors = {value.name: value.type.tensor_type for value in (*model.graph.input, *model.graph.value_info)}
    return {
        name: tuple(axis.dim_value for axis in tensor.shape.dim)
        for name, tensor in tensors.items()
        if tensor.HasField("shape") and all(axis.HasField("dim_value") for axis in tensor.shape.dim)
    }
