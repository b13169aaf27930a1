"""A lowered step model: serialised ONNX graph, interface and weight references. Does not import onnx."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

Mode = Literal["plain", "faithful"]

PROBE_OUTPUT = "probe.max_abs"

GRAPH_DTYPES: dict[str, np.dtype] = {
    **dict.fromkeys(("FLOAT16", "FLOAT32"), np.dtype(np.float32)),
    **dict.fromkeys(("INT8", "UINT8", "INT16", "UINT16", "INT32"), np.dtype(np.int32)),
    "BOOL": np.dtype(np.bool_),
}
"""MIL element type -> numpy dtype in the ONNX graph. fp16 is computed in float32, small integers in int32."""


@dataclass(frozen=True)
class Interface:
    """One input or output: name, MIL element type, and allowed shapes; None is a dynamic axis."""

    name: str
    dtype: str
    shapes: tuple[tuple[int | None, ...], ...]

    @functools.cached_property
    def fixed_shape(self) -> tuple[int, ...] | None:
        """The only allowed shape; None if there are several."""
        return None if len(self.shapes) > 1 or None in self.shapes[0] else self.shapes[0]  # type: ignore[return-value]

    def allows(self, shape: tuple[int, ...]) -> bool:
        """Whether a tensor may have this shape."""
        return any(
            len(shape) == len(option)
            and all(size in (None, found) for size, found in zip(option, shape, strict=True))
            for option in self.shapes
        )

    def describe(self) -> str:
        """The allowed shapes for an error message: `(1, 16, 64) or (1, 1, 64)`, `(1, ?, 64)`."""
        options = (("?" if size is None else str(size) for size in option) for option in self.shapes)
        return " or ".join(f"({', '.join(option)})" for option in options)


_ACCEPTED_DTYPES = {"FLOAT16": ("float16", "float32"), "FLOAT32": ("float16", "float32"), "INT32": ("int32",)}
"""MIL element type -> dtypes that a caller may pass."""


def checked_inputs(
    callee: str, interfaces: Mapping[str, Interface], inputs: Mapping[str, np.ndarray], mode: Mode
) -> dict[str, np.ndarray]:
    """The inputs in the order of the interfaces, in the graph's dtypes. callee: the callee's name, for errors.

    Raises ValueError for a missing or unknown input, a wrong dtype or a wrong shape.
    """
    feeds: dict[str, np.ndarray] = {}
    for name, interface in interfaces.items():
        if name not in inputs:
            raise ValueError(f"{callee} needs an input {name}")
        array, dtype = inputs[name], GRAPH_DTYPES[interface.dtype]
        # Fast path for the usual dtype and shape: names of dtypes and lists of shapes take longer.
        if array.dtype != dtype and array.dtype.name not in (accepted := _ACCEPTED_DTYPES[interface.dtype]):
            raise ValueError(f"{name} must be {' or '.join(accepted)}, not {array.dtype.name}")
        if array.shape not in interface.shapes and not interface.allows(array.shape):
            raise ValueError(f"{name} must have shape {interface.describe()}, not {array.shape}")
        array = np.ascontiguousarray(array, dtype)
        if mode == "faithful" and interface.dtype == "FLOAT16":
            with np.errstate(over="ignore"):  # infinite above 65504
                array = array.astype(np.float16).astype(np.float32)
        feeds[name] = array
    if len(inputs) != len(feeds):
        unknown = ", ".join(sorted(set(inputs) - set(feeds)))
        raise ValueError(f"{callee} has no input {unknown}; its inputs are {', '.join(interfaces)}")
    return feeds


@dataclass(frozen=True)
class WeightRef:
    """An initializer that stays in weight.bin: ONNX name, numpy dtype name, shape, offset in bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int

    def view(self, weights: np.ndarray) -> np.ndarray:
        """The tensor in the memory-mapped weight file (uint8), without a copy."""
        return np.frombuffer(weights, self.dtype, math.prod(self.shape), self.offset).reshape(self.shape)


@dataclass(frozen=True)
class Lowered:
    """A lowered function, with everything that a session needs.

    `scattered` maps an input to the output that is the same tensor after one scatter. Nothing else reads the input,
    so both may share a buffer. `probed` names the entries of the probe output. kernels: whether the graph has operators
    of our own.
    """

    model: bytes
    inputs: tuple[Interface, ...]
    outputs: tuple[Interface, ...]
    weights: tuple[WeightRef, ...]
    weight_file_size: int
    scattered: Mapping[str, str]
    probed: tuple[str, ...]
    kernels: bool = False
