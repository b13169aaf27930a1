"""Loads the dequantised weights of Kokoro's int8 ONNX export into its PyTorch modules.

Nodes of the export are named after their modules, so weights are matched by node name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

Array = npt.NDArray[Any]

# ONNX orders an LSTM's gates as input, output, forget, cell; PyTorch as input, forget, cell, output.
_GATES = (0, 2, 3, 1)
# The exporter's wrappers and shortened names: pattern in a node's path -> replacement in the module's path.
_PATHS = (
    (r"^decoder\.decoder\.", "decoder."),
    (r"^encoder\.(F0|N|shared)([._])", r"predictor.\1\2"),
    (r"^encoder\.", ""),
    (r"\.(cnn\.\d|asr_res)\.(cnn|asr_res)\.", r".\2."),
    (r"\.(LSTM|Conv|ConvTranspose|Gather|MatMul|Gemm_MatMul|LayerNormalization)(_quant)?$", ""),
)
# Parameters missing from the export: scales and offsets of norms, which are 1 and 0, and an unused part of BERT.
_ABSENT = re.compile(r"(norm[12]|adain[12]\.\d)\.norm\.|pooler")
_PRODUCTS = frozenset(("ConvInteger", "MatMulInteger"))
_CONVOLUTIONS = frozenset(("Conv", "ConvTranspose"))


def module_path(node: str) -> str:
    """The path of a node's module, from the node's name."""
    path = node.strip("/").replace("/", ".")
    for pattern, shorter in _PATHS:
        path = re.sub(pattern, shorter, path)
    return path


def load(model: nn.Module, export: bytes) -> None:
    """Copy the export's weights into the model. Raises ValueError if a parameter gets none."""
    import onnx

    graph = Graph(onnx.load_model_from_string(export).graph)
    state = dict(model.named_parameters())
    left = {name for name in state if not _ABSENT.search(name)}

    def put(name: str, value: Array) -> None:
        target = state[name]
        target.data.copy_(torch.from_numpy(np.array(value, np.float32)).reshape(target.shape))
        left.discard(name)

    for node in graph.nodes:
        path = module_path(node.name)
        if node.op_type == "DynamicQuantizeLSTM":
            for name, value in graph.lstm(node):
                put(f"{path}.{name}", value)
        elif f"{path}.weight" in state and (weight := graph.weight(node)) is not None:
            put(f"{path}.weight", weight)
            if f"{path}.bias" in state and (bias := graph.bias(node)) is not None:
                put(f"{path}.bias", bias)
    for name, value in graph.values.items():
        short = re.sub(r"^encoder\.", "", re.sub(r"^decoder\.decoder\.", "decoder.", name))
        if short in left:
            put(short, value)
    if left:
        raise ValueError(f"the export has no weight for {sorted(left)}")


class Graph:
    """An ONNX graph with dynamically quantised weights."""

    def __init__(self, graph: Any) -> None:
        from onnx import numpy_helper

        self.nodes = list(graph.node)
        self.values: dict[str, Array] = {i.name: numpy_helper.to_array(i) for i in graph.initializer}
        """The initializers by name."""
        self._makers = {output: node for node in self.nodes for output in node.output}
        self._users: dict[str, list[Any]] = {}
        for node in self.nodes:
            for name in node.input:
                self._users.setdefault(name, []).append(node)

    def weight(self, node: Any) -> Array | None:
        """A layer's weight in PyTorch's axis order; None for a node without one."""
        if node.op_type in _PRODUCTS:
            weight = self._dequantised(node.input[1], node.input[3] if len(node.input) > 3 else "")
            return weight.T if node.op_type == "MatMulInteger" else weight
        if node.op_type in _CONVOLUTIONS:
            return self._constant(node.input[1])
        if node.op_type == "Gather":
            name = node.input[0]
            return self._dequantised(name, f"{name.removesuffix('_quantized')}_zero_point")
        return self._constant(node.input[1]).T if node.op_type == "MatMul" else None

    def bias(self, node: Any) -> Array | None:
        """A layer's own bias; None if the bias is an initializer with the parameter's name."""
        if node.op_type in _CONVOLUTIONS:
            return self._constant(node.input[2])
        return self._added_bias(node) if node.op_type in _PRODUCTS else None

    def lstm(self, node: Any) -> Iterator[tuple[str, Array]]:
        """Name and value of each weight of a bidirectional LSTM.

        In the export their shape is (2, inputs, 4·hidden), that of the biases (2, 8·hidden).
        """
        # Inputs of the node: weight, its scale and its zero point.
        places = {"ih": (1, 8, 9), "hh": (2, 10, 11)}
        biases = self.values[node.input[3]]
        for direction, suffix in enumerate(("", "_reverse")):
            for kind, inputs in places.items():
                weight, scale, zero = (self.values[node.input[i]] for i in inputs)
                scale, zero = scale.reshape(2, -1)[direction], zero.reshape(2, -1)[direction]
                dequantised = (weight[direction].astype(np.float32) - zero.astype(np.float32)) * scale
                yield f"weight_{kind}_l0{suffix}", _reorder_gates(dequantised.T)
            for kind, half in zip(places, np.split(biases[direction], 2), strict=True):
                yield f"bias_{kind}_l0{suffix}", _reorder_gates(half)

    def _dequantised(self, name: str, zero_point: str) -> Array:
        scale = self.values[f"{name.removesuffix('_quantized')}_scale"]
        zero = self.values.get(zero_point, np.zeros((), np.int8))
        return np.asarray((self.values[name].astype(np.float32) - zero.astype(np.float32)) * scale)

    def _constant(self, name: str) -> Array:
        """A constant, or the output of a DequantizeLinear."""
        if name in self.values:
            return np.asarray(self.values[name], np.float32)
        data, scale, zero = (self.values[i].astype(np.float32) for i in self._makers[name].input[:3])
        return np.asarray((data - zero) * scale, np.float32)

    def _added_bias(self, node: Any) -> Array:
        """The bias added to a product, before or after scaling."""
        following = node
        for _ in range(4):
            following = self._users[following.output[0]][0]
            if following.op_type == "Add":
                break
        queue = list(following.input)
        for _ in range(40):
            if not queue:
                break
            name = queue.pop(0)
            if name in self.values:
                if name.endswith(".bias"):
                    return self.values[name]
            elif (
                (maker := self._makers.get(name)) is not None
                and maker is not node
                and maker.op_type not in _PRODUCTS | {"DynamicQuantizeLinear"}
            ):
                queue += list(maker.input)
        raise ValueError(f"no bias found for {node.name}")


def _reorder_gates(x: Array) -> Array:
    gates = np.split(x, 4)
    return np.concatenate([gates[i] for i in _GATES])
