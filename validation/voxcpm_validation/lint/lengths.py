"""Shapes at each enumerated length, inferred by ONNX from the lowered graph.

The inference starts from the lengths of the inputs and from what each ONNX operator does to shapes. It sees no shape
that coremltools has declared, so that it can tell where coremltools declares another one than an operation has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from onnx import ModelProto, NodeProto, helper, shape_inference

from voxcpm_constants.step_models import StepModel
from voxcpm_runtime.backends.portable.graph import UnsupportedOperationError, value_info
from voxcpm_runtime.backends.portable.lowered import graph_dtype
from voxcpm_runtime.backends.portable.lowering import IR_VERSION, OPSETS, translate, without_states
from voxcpm_runtime.backends.portable.package import Program

# ONNX Runtime's own form of a product whose factors may be transposed; ONNX does not know it.
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
        _standard(graph.nodes, {value: ranks[name] for name, value in values.items() if name in ranks})
    )
    weights = [*graph.initializers.values(), *map(graph.external, graph.weights.values())]
    lengths = []
    for chunk in chunks:
        fixed = {t.name: t.shape_at(chunk) for t in (*declared.inputs, *declared.state)}
        inputs = [
            value_info(
                i.name,
                graph_dtype(i.dtype, "plain"),
                fixed.get(i.name) or i.fixed_shape or [None for _ in i.shapes[0]],
            )
            for i in pure.inputs
        ]
        # Without outputs, whose declared shapes would inform the inference.
        model = helper.make_model(
            helper.make_graph(nodes, "main", inputs, [], weights),
            opset_imports=[helper.make_opsetid(*opset) for opset in OPSETS],
            ir_version=IR_VERSION,
        )
        inferred, failure = _inferred(model)
        shapes = {name: inferred[value] for name, value in values.items() if value in inferred}
        lengths.append(Length(labels[chunk], shapes, failure))
    return tuple(lengths)


def _standard(nodes: Sequence[NodeProto], ranks: Mapping[str, int]) -> Iterator[NodeProto]:
    """The nodes, with each product of transposed factors as transpositions and a product."""
    for node in nodes:
        if node.op_type != _FUSED_PRODUCT:
            yield node
            continue
        transposed = {attribute.name for attribute in node.attribute if attribute.i}
        factors = list(node.input)
        for index, attribute in enumerate(("transA", "transB")):
            if attribute in transposed:
                # A weight that no MIL value stands for is a matrix.
                *leading, rows, columns = range(ranks.get(factors[index], 2))
                name, perm = f"{node.name}/{attribute}", [*leading, columns, rows]
                yield helper.make_node("Transpose", [factors[index]], [name], name=name, perm=perm)
                factors[index] = name
        yield helper.make_node("MatMul", factors, list(node.output), name=node.name)


def _inferred(model: ModelProto) -> tuple[dict[str, tuple[int, ...]], str]:
    """The complete shapes by ONNX name, and why the others could not be inferred."""
    failure = ""
    # With data propagation ONNX follows sizes that are computed, but it takes every sum of integers for one, and
    # refuses those of several axes. What does not fit fails without it, too.
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
