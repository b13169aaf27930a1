"""Shapes at each enumerated length, inferred by ONNX from the lowered graph.

The inference starts from the lengths of the inputs and from what each ONNX operator does to shapes. It sees no shape
that coremltools has declared, so that it can tell where coremltools declares another one than an operation has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from onnx import ModelProto, NodeProto, helper, shape_inference

from voxcpm_constants.step_models import StepModel
from voxcpm_constants.targets import MAIN
from voxcpm_runtime.backends.portable.graph import Graph, UnsupportedOperationError, value_info
from voxcpm_runtime.backends.portable.lowered import Interface, graph_dtype
from voxcpm_runtime.backends.portable.lowering import IR_VERSION, OPSETS, translate, without_states
from voxcpm_runtime.backends.portable.package import Program

# ONNX Runtime's own form of a product whose factors may be transposed; ONNX does not know it.
_FUSED_PRODUCT = "FusedMatMul"

# One failure in the message of onnx.shape_inference.InferenceError.
_FAILURE = re.compile(r"\(op_type:(\w+)(?:, node name: ([^)]+))?\): (.+)")


@dataclass(frozen=True)
class Length:
    """One enumerated length of the inputs, and the shape of each value at it."""

    label: str
    """The input that has the length and its shape: `embeddings (1, 16, 1024)`."""
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """MIL value → its shape, for each value whose shape was inferred completely."""
    failures: tuple[tuple[str, str], ...] = ()
    """(name of a MIL operation, why ONNX could not infer its shape)."""


def infer_lengths(program: Program, declared: StepModel) -> tuple[Length, ...]:
    """The shapes of a program's values at each length that the declaration lists.

    A program that cannot be lowered has no shapes, and one failure, of "main".
    """
    pure = without_states(program)
    try:
        graph, values, _ = translate(pure, "faithful")
    except UnsupportedOperationError as error:
        return (Length(_label(declared, 0), failures=((MAIN, str(error)),)),)
    nodes = list(_standard(graph.nodes, _ranks(pure, values)))
    names = {onnx_name: name for name, onnx_name in values.items()}
    lengths = []
    for chunk in range(declared.chunk_count):
        inferred, messages = _inferred(_model(pure, declared, chunk, nodes, graph))
        shapes = {name: inferred[value] for name, value in values.items() if value in inferred}
        failures = tuple((_operation(node, nodes, names), message) for node, message in messages)
        lengths.append(Length(_label(declared, chunk), shapes, failures))
    return tuple(lengths)


def _label(declared: StepModel, chunk: int) -> str:
    tensor, _ = declared.chunk_axis
    return f"{tensor.name} ({', '.join(map(str, tensor.shape_at(chunk)))})"


def _ranks(program: Program, values: Mapping[str, str]) -> dict[str, int]:
    """The number of axes of each ONNX value that stands for a MIL value."""
    ranks = {i.name: len(i.shapes[0]) for i in program.inputs}
    ranks |= {name: len(type_.shape) for op in program.operations for name, type_ in op.outputs}
    return {value: ranks[name] for name, value in values.items() if name in ranks}


def _standard(nodes: Sequence[NodeProto], ranks: Mapping[str, int]) -> Iterator[NodeProto]:
    """The nodes, with each product of transposed factors as transpositions and a product."""
    for node in nodes:
        if node.op_type != _FUSED_PRODUCT:
            yield node
            continue
        transposed = {attribute.name for attribute in node.attribute if attribute.i}
        factors = []
        for factor, attribute in zip(node.input, ("transA", "transB"), strict=True):
            if attribute not in transposed:
                factors.append(factor)
                continue
            # A weight that no MIL value stands for is a matrix.
            *leading, rows, columns = range(ranks.get(factor, 2))
            name = f"{node.name}/{attribute}"
            yield helper.make_node("Transpose", [factor], [name], name=name, perm=[*leading, columns, rows])
            factors.append(name)
        yield helper.make_node("MatMul", factors, list(node.output), name=node.name)


def _model(
    program: Program, declared: StepModel, chunk: int, nodes: Sequence[NodeProto], graph: Graph
) -> ModelProto:
    """The graph with inputs of one length. Without outputs, whose declared shapes would inform the inference."""
    fixed = {tensor.name: tensor.shape_at(chunk) for tensor in (*declared.inputs, *declared.state)}
    inputs = [
        value_info(i.name, graph_dtype(i.dtype, "plain"), fixed.get(i.name, _single(i)))
        for i in program.inputs
    ]
    weights = [*graph.initializers.values(), *map(graph.external, graph.weights.values())]
    return helper.make_model(
        helper.make_graph(nodes, "main", inputs, [], weights),
        opset_imports=[helper.make_opsetid(*opset) for opset in OPSETS],
        ir_version=IR_VERSION,
    )


def _single(interface: Interface) -> Sequence[int | None]:
    """The shape of an input that no declaration has."""
    return interface.fixed_shape or [None for _ in interface.shapes[0]]


def _inferred(model: ModelProto) -> tuple[dict[str, tuple[int, ...]], list[tuple[str, str]]]:
    """The complete shapes by ONNX name, and the failures: (name of a node, message)."""
    inferred, message = _strictly(model, propagated=True)
    if message:
        # With data propagation ONNX follows sizes that are computed, but it takes every sum of integers for one, and
        # refuses those of several axes. What does not fit fails without it, too.
        inferred, message = _strictly(model, propagated=False)
    failures = [(node, reason) for _, node, reason in _FAILURE.findall(message)]
    return _shapes(inferred), failures if failures or not message else [("", message)]


def _strictly(model: ModelProto, *, propagated: bool) -> tuple[ModelProto, str]:
    """The model with inferred shapes, and why some could not be inferred."""
    try:
        return shape_inference.infer_shapes(model, strict_mode=True, data_prop=propagated), ""
    except shape_inference.InferenceError as error:
        return shape_inference.infer_shapes(model, data_prop=propagated), str(error)


def _shapes(model: ModelProto) -> dict[str, tuple[int, ...]]:
    shapes = {}
    for value in (*model.graph.input, *model.graph.value_info):
        tensor = value.type.tensor_type
        if tensor.HasField("shape") and all(axis.HasField("dim_value") for axis in tensor.shape.dim):
            shapes[value.name] = tuple(axis.dim_value for axis in tensor.shape.dim)
    return shapes


def _operation(failed: str, nodes: Sequence[NodeProto], names: Mapping[str, str]) -> str:
    """The MIL operation that an ONNX node belongs to: the one whose result is computed next."""
    after = False
    for node in nodes:
        after = after or node.name == failed
        found = next((names[output] for output in node.output if output in names), None)
        if after and found is not None:
            return found
    return failed or MAIN
