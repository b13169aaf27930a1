"""An ONNX graph under construction, and the MIL operation that an operator function lowers (`Call`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from voxcpm_runtime.backends.portable.lowered import GRAPH_DTYPES, Mode, WeightRef
from voxcpm_runtime.backends.portable.package import (
    STORED_DTYPES,
    Argument,
    Blob,
    Constant,
    Operation,
    PackageError,
    Program,
    TensorType,
)

CONTRIB = "com.microsoft"
# The domain of custom operators (kernels/).
KERNELS = "voxcpm"

# Blobs up to this size are copied into the graph: biases, norm weights and Snake's alphas, but no matrices.
_INLINE_BYTES = 4096


class UnsupportedOperationError(PackageError):
    """A MIL operation, or a use of one, that is not supported."""


class Graph:
    """ONNX nodes, constants and weight references.

    signed_products: see `sessions.has_exact_signed_products`. kernels: the custom operators that may be used.
    utterances: those that a call advances.
    """

    def __init__(
        self, *, signed_products: bool = False, kernels: frozenset[str] = frozenset(), utterances: int = 1
    ) -> None:
        self.signed_products, self.kernels, self.utterances = signed_products, kernels, utterances
        self.nodes: list[NodeProto] = []
        self.initializers: dict[str, TensorProto] = {}
        self.weights: dict[str, WeightRef] = {}
        self._constants: dict[tuple[Any, ...], str] = {}
        self._count = 0

    def name(self, stem: str) -> str:
        """A unique name. MIL names contain no slash, so it cannot equal one of them."""
        self._count += 1
        return f"{stem}/{self._count}"

    def emit(self, kind: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """Append a node and return the name of its only output. An empty input name means an omitted input."""
        return self.emit_many(kind, *inputs, outputs=1, domain=domain, **attributes)[0]

    def emit_many(
        self, kind: str, *inputs: str, outputs: int, domain: str = "", **attributes: Any
    ) -> list[str]:
        """Append a node and return the names of its outputs."""
        names = [self.name(kind) for _ in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, names, name=names[0], domain=domain, **attributes))
        return names

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        """Name of a constant stored in the graph; equal constants share one."""
        array = np.asarray(value, dtype)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            name = self._constants[key] = self.name("const")
            self.initializers[name] = numpy_helper.from_array(array, name)
        return self._constants[key]

    def integers(self, values: Any) -> str:
        """Name of an int64 constant, ONNX's type for shapes, axes and bounds."""
        return self.constant(values, np.int64)

    def weight(self, blob: Blob, dtype: np.dtype) -> str:
        """Name of a weight in weight.bin, read as `dtype`; elements smaller than a byte as a vector of bytes."""
        name = f"weight@{blob.offset}:{dtype.name}"
        shape = blob.shape if blob.dtype in STORED_DTYPES else (blob.size,)
        self.weights[name] = WeightRef(name, dtype.name, shape, blob.offset)
        return name

    def external(self, ref: WeightRef) -> TensorProto:
        """The placeholder that ONNX Runtime replaces with the memory passed at session creation."""
        dtype = np.dtype(ref.dtype)
        tensor = TensorProto(name=ref.name, data_type=helper.np_dtype_to_tensor_dtype(dtype), dims=ref.shape)
        tensor.data_location = TensorProto.EXTERNAL
        length = math.prod(ref.shape) * dtype.itemsize
        for key, value in (("location", "weight.bin"), ("offset", ref.offset), ("length", length)):
            tensor.external_data.add(key=key, value=str(value))
        return tensor


class Call:
    """One MIL operation, with ONNX names for tensors and Python values for constants."""

    def __init__(
        self, operation: Operation, program: Program, graph: Graph, mode: Mode, values: dict[str, str],
        constants: dict[str, Constant], types: dict[str, TensorType], dequantized: dict[str, Operation],
    ) -> None:  # fmt: skip
        self.operation, self.program, self.graph, self.mode = operation, program, graph, mode
        self.dequantized = dequantized
        self._values, self._constants, self._types = values, constants, types
        self.emit, self.constant, self.integers = graph.emit, graph.constant, graph.integers

    def refuse(self, reason: str) -> UnsupportedOperationError:
        """The error, for the caller to raise, that this operation is not supported."""
        return UnsupportedOperationError(
            f"MIL operation {self.operation.kind} ({self.operation.name}): {reason}"
        )

    def has(self, name: str) -> bool:
        """Whether the operation has this input."""
        return name in self.operation.inputs

    def reference(self, name: str) -> str | None:
        """The MIL name of an input; None for an inline constant."""
        argument = self._argument(name)
        return argument if isinstance(argument, str) else None

    def shape(self, name: str) -> tuple[int | None, ...]:
        """Shape of an input; None is a dimension known only at run time."""
        return self._type(self._argument(name)).shape

    def dtype(self, name: str) -> np.dtype:
        """dtype of an input in the ONNX graph."""
        return GRAPH_DTYPES[self._type(self._argument(name)).dtype]

    def rank(self, name: str) -> int:
        """Number of dimensions of an input."""
        return len(self.shape(name))

    def tensor(self, name: str) -> str:
        """ONNX name of an input's value."""
        return self._tensor(self._argument(name))

    def tensors(self, name: str) -> tuple[list[str], list[int]]:
        """ONNX names and ranks of the values of a variadic input."""
        arguments = self.operation.inputs[name]
        return [*map(self._tensor, arguments)], [len(self._type(argument).shape) for argument in arguments]

    def is_constant(self, name: str) -> bool:
        """Whether an input is a constant."""
        return self._constant(self._argument(name)) is not None

    def static(self, name: str, default: Any = None) -> Any:
        """A constant input as int, float, bool, str or nested list; the default if it is absent."""
        if not self.has(name):
            return default
        constant = self.require_constant(self._argument(name), name)
        return constant.data if isinstance(constant.data, str) else self.array(constant).tolist()

    def indices(self, name: str) -> str:
        """ONNX name of an integer input as int64."""
        if self.is_constant(name):
            return self.integers(self.static(name))
        return self.emit("Cast", self.tensor(name), to=TensorProto.INT64)

    def reshape(self, value: str, shape: Sequence[int]) -> str:
        """A value in another shape."""
        return self.emit("Reshape", value, self.integers(shape))

    def slice(self, value: str, begins: Sequence[int], ends: Sequence[int], axes: Sequence[int]) -> str:
        """A part of a value."""
        return self.emit("Slice", value, self.integers(begins), self.integers(ends), self.integers(axes))

    def require_constant(self, argument: Argument, name: str = "") -> Constant:
        """The constant of an argument of this operation or an earlier one. name: for the error message."""
        constant = self._constant(argument)
        if constant is None:
            raise self.refuse(f"{name or argument} must be a constant")
        return constant

    def array(self, constant: Constant) -> np.ndarray:
        """A numeric constant's elements as stored."""
        data = constant.data
        return self.program.read(data) if isinstance(data, Blob) else np.asarray(data)

    def materialised(self, constant: Constant) -> str:
        """ONNX name of a constant in the graph's dtype: in the graph if small, otherwise in weight.bin."""
        dtype = GRAPH_DTYPES[constant.type.dtype]
        stored = self.array(constant)
        if not isinstance(constant.data, Blob) or constant.data.size <= _INLINE_BYTES:
            return self.constant(stored.astype(dtype), dtype)
        name = self.graph.weight(constant.data, stored.dtype)
        # ONNX Runtime folds this cast when it loads the graph, so Python needs no copy of the weights.
        cast_to = helper.np_dtype_to_tensor_dtype(dtype)
        return name if stored.dtype == dtype else self.emit("Cast", name, to=cast_to)

    def _argument(self, name: str) -> Argument:
        (argument,) = self.operation.inputs[name]
        return argument

    def _type(self, argument: Argument) -> TensorType:
        return self._types[argument] if isinstance(argument, str) else argument.type

    def _constant(self, argument: Argument) -> Constant | None:
        return self._constants.get(argument) if isinstance(argument, str) else argument

    def _tensor(self, argument: Argument) -> str:
        if isinstance(argument, str) and argument in self._values:
            return self._values[argument]
        constant = self._constant(argument)
        if constant is None:
            raise self.refuse(f"input {argument} is used before it is defined")
        name = self.materialised(constant)
        if isinstance(argument, str):
            self._values[argument] = name
        return name


Operator = Callable[[Call], str | Sequence[str]]


def value_info(name: str, dtype: np.dtype, shape: Sequence[int | None] | None) -> ValueInfoProto:
    """ONNX declaration of a graph input or output; None is a dynamic dimension."""
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(dtype), shape)
