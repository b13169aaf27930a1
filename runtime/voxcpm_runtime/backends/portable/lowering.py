"""An .mlpackage's ML program → an ONNX graph and references into its weight file.

Each MIL operation becomes a few ONNX nodes (operators/). In *plain* mode fp16 tensors are computed in float32. In
*faithful* mode every operation whose MIL output is fp16 is followed by a rounding to fp16 (to infinity above 65504),
as Core ML's fp16 units store it. The weights stay in weight.bin.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from onnx import NodeProto, TensorProto, helper

from voxcpm_constants.targets import MAIN, utterances_of
from voxcpm_runtime.backends.portable.graph import (
    CONTRIB,
    KERNELS,
    Call,
    Graph,
    UnsupportedOperationError,
    value_info,
)
from voxcpm_runtime.backends.portable.kernels import SNAKE
from voxcpm_runtime.backends.portable.lowered import GRAPH_DTYPES, PROBE_OUTPUT, Interface, Lowered, Mode
from voxcpm_runtime.backends.portable.operators import DEQUANTIZERS, OPERATORS, VALUE_PRESERVING
from voxcpm_runtime.backends.portable.package import (
    Argument,
    Constant,
    Operation,
    Program,
    TensorType,
    package_errors,
    read_package,
)
from voxcpm_runtime.backends.portable.rewrites import fused_rms_norms, fused_snakes, slice_caches

OPSETS = (("", 20), (CONTRIB, 1), (KERNELS, 1))
IR_VERSION = 9


def lower(
    package: Path,
    function: str = MAIN,
    mode: Mode = "plain",
    probe: bool = False,
    signed_products: bool = False,
    kernels: frozenset[str] = frozenset(),
) -> Lowered:
    """Lower a function of a package to an ONNX graph. signed_products, kernels: see `Graph`.

    probe: add the output PROBE_OUTPUT (operations,): max |value| of every fp16 operation's result before rounding.
    Raises PackageError for a damaged package and UnsupportedOperationError for an unsupported operation.
    """
    read = read_package(package, function)
    with package_errors(package):
        program = without_states(read)
        utterances = utterances_of(function)
        graph = Graph(signed_products=signed_products, kernels=kernels, utterances=utterances)
        graph, values, probed = translate(program, mode, probe, graph)
        outputs = [o.name for o in program.outputs] + ([PROBE_OUTPUT] if probed else [])
        nodes = _with_named_outputs(graph, {name: values[name] for name in outputs})
        if mode != "faithful" and not probed:
            nodes = fused_rms_norms(nodes, graph)
        if mode == "plain" and not probed:
            nodes = slice_caches(nodes, graph)
            nodes = fused_snakes(nodes, graph) if SNAKE in kernels else nodes
        return _serialised(program, graph, _reachable(nodes, outputs), probed)


def without_states(program: Program) -> Program:
    """The program with each Core ML state as an input `name` and an output `name_out`.

    A read becomes the value last written: a KV cache has one scatter from input to output, which then runs in place.
    """
    now = {state.name: state.name for state in program.states}
    read: dict[str, str] = {}

    def resolved(argument: Argument) -> Argument:
        return read.get(argument, argument) if isinstance(argument, str) else argument

    def name_of(arguments: tuple[Argument, ...]) -> str:
        (argument,) = arguments
        if not isinstance(argument, str):
            raise TypeError("a state is read and written by its name")
        return argument

    operations = []
    for operation in program.operations:
        inputs = {name: tuple(map(resolved, arguments)) for name, arguments in operation.inputs.items()}
        if operation.kind == "read_state":
            read[operation.name] = now[name_of(inputs["input"])]
        elif operation.kind == "write_state":
            now[name_of(inputs["input"])] = name_of(inputs["data"])
        else:
            operations.append(replace(operation, inputs=inputs))
    outputs = [replace(state, name=f"{state.name}_out") for state in program.states]
    for state, output in zip(program.states, outputs, strict=True):
        type_ = TensorType(state.dtype, state.fixed_shape or ())
        operations.append(Operation("identity", {"x": (now[state.name],)}, {}, ((output.name, type_),)))
    return replace(
        program,
        inputs=(*program.inputs, *program.states),
        outputs=(*program.outputs, *outputs),
        states=(),
        operations=tuple(operations),
    )


def translate(
    program: Program, mode: Mode, probe: bool = False, graph: Graph | None = None
) -> tuple[Graph, dict[str, str], list[str]]:
    """The graph of a program without states, the ONNX name of every MIL value, and the names of the probed operations.

    Raises UnsupportedOperationError.
    """
    unknown = {op.kind: op.name for op in program.operations if op.kind not in ("const", *OPERATORS)}
    if unknown:
        listed = ", ".join(f"{kind} ({name})" for kind, name in sorted(unknown.items()))
        raise UnsupportedOperationError(f"MIL operations without a portable form: {listed}")
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
            # Also lowered at its use: a linear layer keeps weights of 8 or 4 bits, a convolution does not.
            dequantized[operation.name] = operation
        results = OPERATORS[operation.kind](
            Call(operation, program, graph, mode, values, constants, types, dequantized)
        )
        listed_results = [results] if isinstance(results, str) else results
        for (name, type_), result in zip(operation.outputs, listed_results, strict=True):
            values[name] = result
            if type_.dtype == "FLOAT16" and operation.kind not in VALUE_PRESERVING:
                if probe and not operation.kind.startswith("constexpr"):
                    maximum = graph.emit("ReduceMax", graph.emit("Abs", result), keepdims=0)
                    maxima[name] = graph.emit("Reshape", maximum, graph.integers([1]))
                if mode == "faithful":
                    half = graph.emit("Cast", result, to=TensorProto.FLOAT16)
                    values[name] = graph.emit("Cast", half, to=TensorProto.FLOAT)
    if maxima:
        values[PROBE_OUTPUT] = graph.emit("Concat", *maxima.values(), axis=0)
    return graph, values, list(maxima)


def _open_shape(interface: Interface) -> tuple[int | None, ...]:
    """The allowed shapes as one, with None where they differ."""
    columns = (set(column) for column in zip(*interface.shapes, strict=True))
    return tuple(column.pop() if len(column) == 1 else None for column in columns)


def _with_named_outputs(graph: Graph, outputs: Mapping[str, str]) -> list[NodeProto]:
    """The nodes, with graph outputs renamed; an input, a constant or an earlier output gets an Identity node."""
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


def _reachable(nodes: Sequence[NodeProto], outputs: Sequence[str]) -> list[NodeProto]:
    """The nodes that the outputs depend on, in order."""
    needed = set(outputs)
    kept = []
    for node in reversed(nodes):
        if needed.intersection(node.output):
            needed.update(filter(None, node.input))
            kept.append(node)
    return kept[::-1]


def _serialised(program: Program, graph: Graph, nodes: Sequence[NodeProto], probed: Sequence[str]) -> Lowered:
    reads = Counter(name for node in nodes for name in node.input)
    weights = tuple(ref for name, ref in graph.weights.items() if name in reads)
    inputs = [value_info(i.name, GRAPH_DTYPES[i.dtype], _open_shape(i)) for i in program.inputs]
    outputs = [value_info(o.name, GRAPH_DTYPES[o.dtype], None) for o in program.outputs]
    outputs += [value_info(PROBE_OUTPUT, np.dtype(np.float32), (len(probed),))] if probed else []
    initializers = [tensor for name, tensor in graph.initializers.items() if name in reads]
    initializers += [graph.external(ref) for ref in weights]
    model = helper.make_model(
        helper.make_graph(nodes, "main", inputs, outputs, initializers),
        opset_imports=[helper.make_opsetid(*opset) for opset in OPSETS],
        ir_version=IR_VERSION,
    )
    inputs_named, outputs_named = ({value.name for value in values} for values in (inputs, outputs))
    scatters = [(node.input[0], node.output[0]) for node in nodes if node.op_type == "ScatterND"]
    return Lowered(
        model=model.SerializeToString(),
        inputs=program.inputs,
        outputs=program.outputs,
        weights=weights,
        weight_file_size=program.weights.size,
        scattered={
            into: result
            for into, result in scatters
            if into in inputs_named and reads[into] == 1 and result in outputs_named
        },
        probed=tuple(probed),
        kernels=any(node.domain == KERNELS for node in nodes),
    )
