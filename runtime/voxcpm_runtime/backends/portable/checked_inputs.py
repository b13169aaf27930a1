"""Inputs of a call, checked against what a graph takes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from voxcpm_runtime.backends.portable.lowered import Interface, Mode, graph_dtype
from voxcpm_runtime.backends.portable.state import rounded_to_fp16

# What a caller may pass for each MIL element type.
ACCEPTED_DTYPES = {
    "FLOAT16": ("float16", "float32"),
    "FLOAT32": ("float16", "float32"),
    "INT32": ("int32",),
}


def checked_inputs(
    called: str, interfaces: Mapping[str, Interface], inputs: Mapping[str, np.ndarray], mode: Mode
) -> dict[str, np.ndarray]:
    """The inputs in the order of the interfaces and in the graph's dtypes. called: what the errors name.

    Raises ValueError for a missing or unknown input, another dtype, or a shape that the graph does not take.
    """
    feeds = {name: _checked(called, interface, inputs, mode) for name, interface in interfaces.items()}
    if len(inputs) != len(feeds):
        unknown = ", ".join(sorted(set(inputs) - set(feeds)))
        raise ValueError(f"{called} has no input {unknown}; its inputs are {', '.join(interfaces)}")
    return feeds


def _checked(called: str, interface: Interface, inputs: Mapping[str, np.ndarray], mode: Mode) -> np.ndarray:
    if interface.name not in inputs:
        raise ValueError(f"{called} needs an input {interface.name}")
    array, dtype = inputs[interface.name], graph_dtype(interface.dtype, mode)
    # What comes for nearly every patch is compared first: the names of dtypes and lists of shapes take longer.
    if array.dtype != dtype and array.dtype.name not in (accepted := ACCEPTED_DTYPES[interface.dtype]):
        raise ValueError(f"{interface.name} must be {' or '.join(accepted)}, not {array.dtype.name}")
    if array.shape != interface.fixed_shape and not interface.allows(array.shape):
        raise ValueError(f"{interface.name} must have shape {interface.describe()}, not {array.shape}")
    array = np.ascontiguousarray(array, dtype)
    return rounded_to_fp16(array) if mode == "faithful" and interface.dtype == "FLOAT16" else array
