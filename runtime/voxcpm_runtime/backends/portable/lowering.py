"""An .mlpackage's ML program → an ONNX graph and references into its weight file.

Each MIL operation becomes a few ONNX nodes (operators/). In *plain* mode fp16 tensors are computed in float32. In
*faithful* mode every operation whose MIL output is fp16 is followed by a rounding to fp16 (to infinity above 65504),
as Core ML's fp16 units store it. In *half* mode fp16 tensors are fp16 in the graph, too, for a GPU. The weights stay in
weight.bin in all three.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from onnx import NodeProto, TensorProto, helper

from voxcpm_constants.targets import MAIN
from voxcpm_runtime.backends.portable.attention import cut_behind_positions
from voxcpm_runtime.backends.portable.fusion import fuse
from voxcpm_runtime.backends.portable.graph import Call, Graph, UnsupportedOperationError, value_info
from voxcpm_runtime.backends.portable.lowered import (
    PROBE_OUTPUT,
    Interface,
    Lowered,
    Mode,
    WeightRef,
    graph_dtype,
)
from voxcpm_runtime.backends.portable.operators import DEQUANTIZERS, OPERATORS, VALUE_PRESERVING
from voxcpm_runtime.backends.portable.package import (
    Constant,
    Operation,
    Program,
    TensorType,
    damage_named,
    read_package,
)
from voxcpm_runtime.backends.portable.resolved_states import without_states

OPSETS = (("", 20), ("com.microsoft", 1))
IR_VERSION = 9

# Nodes that write into a copy of an input, and may write into that input itself: index of the input -> of the output.
SCATTERS = {"ScatterElements": {0: 0}, "ScatterND": {0: 0}}


def lower(
    package: Path,
    function: str = MAIN,
    mode: Mode = "plain",
    probe: bool = False,
    signed_products: bool = False,
) -> Lowered:
    """Lower a function of a package to an ONNX graph. signed_products: see `Graph`.

    With `probe` the graph has one more output, PROBE_OUTPUT: max |value| of every fp16 operation's result before
    rounding, float32 (operations,), named by `Lowered.probed`.

    Raises PackageError for a damaged package and UnsupportedOperationError for an operation without an ONNX form.
    """
    read = read_package(package, function)
    with damage_named(package):
        program = without_states(read)
        graph = Graph(signed_products=signed_products)
        return _serialised(program, *translate(program, mode, probe, graph), mode=mode)


def translate(
    program: Program, mode: Mode, probe: bool = False, graph: Graph | None = None
) -> tuple[Graph, dict[str, str], list[str]]:
    """The graph of a program without states, the ONNX name of every MIL value, and the names of the probed operations.

    Raises UnsupportedOperationError for an operation without an ONNX form.
    """
    _refuse_unknown(program.operations)
    graph = graph or Graph()
    values = {i.name: i.name for i in program.inputs}
    types = {i.name: TensorType(i.dtype, _open_shape(i)) for i in program.inputs}
    types |= {name: type_ for op in program.operations for name, type_ in op.outputs}
    constants: dict[str, Constant] = {}
    dequantized: dict[str, Operation] = {}
    maxima: dict[str, str] = {}
    for operation in program.operations:
        if operation.kind == "const":
            constants[operation.name] = operation.attributes["val"]
            continue
        if operation.kind in DEQUANTIZERS:
            # Lowered where it is used: a linear layer keeps weights of 8 or 4 bits, a convolution does not.
            dequantized[operation.name] = operation
        call = Call(operation, program, graph, mode, values, constants, types, dequantized)
        results = OPERATORS[operation.kind](call)
        for (name, type_), result in zip(operation.outputs, _listed(results), strict=True):
            if type_.dtype == "FLOAT16" and operation.kind not in VALUE_PRESERVING:
                if probe and not operation.kind.startswith("constexpr"):
                    maxima[name] = _max_abs(graph, result)
                values[name] = rounded(graph, result) if mode == "faithful" else result
            else:
                values[name] = result
    if maxima:
        values[PROBE_OUTPUT] = graph.emit("Concat", *maxima.values(), axis=0)
    return graph, values, list(maxima)


def rounded(graph: Graph, value: str) -> str:
    """The value rounded to the nearest fp16 number, still float32."""
    half = graph.emit("Cast", value, to=TensorProto.FLOAT16)
    return graph.emit("Cast", half, to=TensorProto.FLOAT)


def _refuse_unknown(operations: Sequence[Operation]) -> None:
    unknown = {op.kind: op.name for op in operations if op.kind != "const" and op.kind not in OPERATORS}
    if unknown:
        listed = ", ".join(f"{kind} ({name})" for kind, name in sorted(unknown.items()))
        raise UnsupportedOperationError(f"MIL operations without a portable form: {listed}")


def _listed(results: str | Sequence[str]) -> Sequence[str]:
    return [results] if isinstance(results, str) else results


def _open_shape(interface: Interface) -> tuple[int | None, ...]:
    """One shape for all those allowed: None where they differ."""
    columns = zip(*interface.shapes, strict=True)
    spans = ({bound for span in column for bound in span} for column in columns)
    return tuple(span.pop() if len(span) == 1 else None for span in spans)


def _max_abs(graph: Graph, value: str) -> str:
    maximum = graph.emit("ReduceMax", graph.emit("Abs", value), keepdims=0)
    return graph.emit("Reshape", maximum, graph.integers([1]))


def _serialised(
    program: Program, graph: Graph, values: Mapping[str, str], probed: Sequence[str], mode: Mode
) -> Lowered:
    outputs = [o.name for o in program.outputs] + ([PROBE_OUTPUT] if probed else [])
    nodes = _with_named_outputs(graph, {name: values[name] for name in outputs})
    if mode != "faithful" and not probed:
        nodes = fuse(nodes, graph)
    if mode == "plain" and not probed:
        nodes = cut_behind_positions(nodes, graph)
    if mode == "half" and not probed and program.weights is not None:
        from voxcpm_runtime.backends.gpu.fusion import fuse_for_gpu

        shapes: dict[str, tuple[int | None, ...] | None] = {i.name: i.fixed_shape for i in program.inputs}
        dtypes = {i.name: graph_dtype(i.dtype, mode) for i in program.inputs}
        given = {values[n]: type_ for op in program.operations for n, type_ in op.outputs if n in values}
        shapes |= {name: type_.shape for name, type_ in given.items()}
        dtypes |= {name: graph_dtype(type_.dtype, mode) for name, type_ in given.items()}
        nodes = fuse_for_gpu(nodes, graph, partial(WeightRef.view, weights=program.weights), shapes, dtypes)
    nodes = _needed(nodes, outputs)
    used = {name for node in nodes for name in node.input}
    weights = tuple(ref for name, ref in graph.weights.items() if name in used)
    declared = [value_info(o.name, graph_dtype(o.dtype, mode), None) for o in program.outputs]
    declared += [value_info(PROBE_OUTPUT, np.dtype(np.float32), (len(probed),))] if probed else []
    onnx_graph = helper.make_graph(
        nodes,
        "main",
        [value_info(i.name, graph_dtype(i.dtype, mode), _open_shape(i)) for i in program.inputs],
        declared,
        [tensor for name, tensor in graph.initializers.items() if name in used]
        + [graph.external(w) for w in weights],
    )
    opsets = [helper.make_opsetid(*opset) for opset in OPSETS]
    model = helper.make_model(onnx_graph, opset_imports=opsets, ir_version=IR_VERSION)
    return Lowered(
        model=model.SerializeToString(),
        inputs=program.inputs,
        outputs=program.outputs,
        weights=weights,
        weight_file_size=0 if program.weights is None else program.weights.size,
        scattered=_scattered(nodes, {i.name for i in program.inputs}, set(outputs)),
        probed=tuple(probed),
    )


def _with_named_outputs(graph: Graph, outputs: Mapping[str, str]) -> list[NodeProto]:
    """The nodes, with each graph output computed under its own name.

    A node's result is renamed; a copy is made only of a value that is also an input, a constant or another output.
    """
    produced = {name for node in graph.nodes for name in node.output}
    renamed: dict[str, str] = {}
    copies = []
    for output, value in outputs.items():
        if value in produced and value not in renamed:
            renamed[value] = output
        else:
            copies.append(helper.make_node("Identity", [renamed.get(value, value)], [output], name=output))
    for node in graph.nodes:
        for names in (node.input, node.output):
            names[:] = [renamed.get(name, name) for name in names]
    return [*graph.nodes, *copies]


def _needed(nodes: Sequence[NodeProto], outputs: Sequence[str]) -> list[NodeProto]:
    """The nodes that some output depends on, in order."""
    needed = set(outputs)
    kept = []
    for node in reversed(nodes):
        if needed.intersection(node.output):
            needed.update(filter(None, node.input))
            kept.append(node)
    return kept[::-1]


def _scattered(nodes: Sequence[NodeProto], inputs: set[str], outputs: set[str]) -> dict[str, str]:
    """Inputs that only one node reads, which writes into them, and whose result is an output → that output."""
    readers: dict[str, list[tuple[NodeProto, int]]] = {}
    for node in nodes:
        for index, name in enumerate(node.input):
            readers.setdefault(name, []).append((node, index))
    found = {}
    for name, ((node, index), *others) in readers.items():
        if name in inputs and not others and index in SCATTERS.get(node.op_type, {}):
            found[name] = node.output[SCATTERS[node.op_type][index]]
    return {name: output for name, output in found.items() if output in outputs}
