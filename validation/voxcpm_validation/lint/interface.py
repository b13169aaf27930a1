"""Checks of a package as a whole: its interface, its target, and the size of its weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from voxcpm_constants.bounds import LARGEST_WEIGHT_FILE, STATE_MULTIPLE
from voxcpm_constants.step_models import TensorSpec
from voxcpm_constants.targets import updated_name
from voxcpm_constants.tensor_files import WEIGHT_FILE
from voxcpm_conversion.core_ml.toolchain import import_coremltools
from voxcpm_runtime.backends.portable.lowered import Interface
from voxcpm_runtime.backends.portable.package import HALF_BYTES, TensorType

from .function import INPUT, Function, Violation, constants_of, shown, spelled, violation

OUTPUT = "output"
STATE = "state"
PACKAGE = "package"
FILE = "file"

# coremltools' name for the target from which on tensors have elements of half a byte.
_HALF_BYTES_SINCE = "iOS18"
# Operations of coremltools' dialects: a program is written with them, but they are not in the registry of its core.
_DIALECT_SINCE = {"write_state": "iOS18"}


def interfaces(function: Function) -> Iterator[Violation]:
    """Differences between the MIL function, the model's description and the declaration."""
    described = {i.name: i for i in (*function.program.inputs, *function.program.states)}
    states = {state.name for state in function.program.states}
    for name in sorted(described.keys() | function.parameters.keys()):
        kind = STATE if name in states else INPUT
        found, expected = _of_program(function.parameters.get(name)), _of_description(described.get(name))
        if found != expected and not _is_open(function.parameters.get(name), described.get(name)):
            yield Violation(name, kind, f"program: {found}", f"description: {expected}")
    returned = {output.name for output in function.program.outputs}
    for name in sorted(returned ^ function.described_outputs.keys()):
        places = ("the program", "the description")
        here, there = places if name in returned else places[::-1]
        yield Violation(name, OUTPUT, f"in {here} only", f"in {there}, too")
    yield from _undeclared(function)


def _of_program(type_: TensorType | None) -> str:
    return "absent" if type_ is None else spelled(_interface(type_))


def _of_description(interface: Interface | None) -> str:
    return "absent" if interface is None else spelled(interface)


def _interface(type_: TensorType) -> Interface:
    return Interface("", type_.dtype, (tuple((axis or 0, axis or 0) for axis in type_.shape),))


def _is_open(type_: TensorType | None, interface: Interface | None) -> bool:
    """Whether an input of several shapes is one with open axes in the program."""
    if type_ is None or interface is None or interface.fixed_shape is not None:
        return False
    return type_.dtype == interface.dtype and all(
        len(shape) == len(type_.shape)
        and all(axis is None or span == (axis, axis) for axis, span in zip(type_.shape, shape, strict=True))
        for shape in interface.shapes
    )


def _undeclared(function: Function) -> Iterator[Violation]:
    """Differences between the description and the declaration."""
    declared = function.declared
    native = function.state == "native"
    passed = () if native else declared.state
    inputs = {t.name: _declared(t, function) for t in (*declared.inputs, *passed)}
    states = {t.name: _declared(t, function) for t in declared.state if native}
    outputs = {t.name: _dtype(t, function) for t in declared.outputs}
    outputs |= {updated_name(t, function.state): _dtype(t, function) for t in passed}
    program = function.program
    for kind, found, expected in (
        (INPUT, {i.name: _described(i) for i in program.inputs}, inputs),
        (STATE, {i.name: _described(i) for i in program.states}, states),
        (OUTPUT, function.described_outputs, outputs),
    ):
        yield from _differences(kind, found, expected)


def _differences(kind: str, found: Mapping[str, str], expected: Mapping[str, str]) -> Iterator[Violation]:
    for name in sorted(found.keys() | expected.keys()):
        here, there = found.get(name, "absent"), expected.get(name, "absent")
        if here != there:
            yield Violation(name, kind, f"description: {here}", f"declaration: {there}")


def _described(interface: Interface) -> str:
    return spelled(Interface("", interface.dtype, tuple(sorted(interface.shapes))))


def _declared(tensor: TensorSpec, function: Function) -> str:
    chunks = {tensor.shape_at(chunk) for chunk in range(function.declared.chunk_count)}
    shapes = sorted(tuple((axis, axis) for axis in shape) for shape in chunks)
    return spelled(Interface("", _dtype(tensor, function), tuple(shapes)))


def _dtype(tensor: TensorSpec, function: Function) -> str:
    compute = "FLOAT32" if function.precision == "fp32" else "FLOAT16"
    return {"float32": "FLOAT32", "int32": "INT32", "compute": compute}[tensor.dtype]


def targets(function: Function) -> Iterator[Violation]:
    """A specification, operations and element types that the deployment target does not have."""
    # The registry takes seconds to import, and warns of untested versions unless coremltools is imported silently.
    coremltools = import_coremltools()
    from coremltools.converters.mil.mil.ops.registry import SSAOpRegistry

    available: Any = coremltools.target
    version = int(available[function.target].value)
    if function.is_first and function.specification_version != version:
        found = f"specification version {function.specification_version}"
        yield Violation("specification", PACKAGE, found, f"{version}, that of {function.target}")
    for operation in function.program.operations:
        since = [int(t.value) for t in SSAOpRegistry.core_ops.get(operation.kind, ())]
        if operation.kind in _DIALECT_SINCE:
            since = [int(available[_DIALECT_SINCE[operation.kind]].value)]
        if not since:
            yield violation(operation, "an unknown operation", "one of MIL's")
        elif min(since) > version:
            yield violation(operation, operation.kind, f"what {function.target} has")
        dtypes = {constant.type.dtype for constant in constants_of(operation)}
        if dtypes & HALF_BYTES.keys() and int(available[_HALF_BYTES_SINCE].value) > version:
            yield violation(operation, "elements of half a byte", f"what {function.target} has")


def dynamic_inputs(function: Function) -> Iterator[Violation]:
    """Inputs with an axis of any length in a range."""
    for given in function.program.inputs:
        if any(low != high for shape in given.shapes for low, high in shape):
            yield Violation(given.name, INPUT, spelled(given), "fixed or enumerated shapes")


def state_sizes(function: Function) -> Iterator[Violation]:
    """States with a last or last but one axis that the Neural Engine does not take."""
    for state in function.program.states:
        shape = state.fixed_shape or ()
        if any(axis % STATE_MULTIPLE for axis in shape[-2:]):
            expected = f"multiples of {STATE_MULTIPLE} as the last two axes"
            yield Violation(state.name, STATE, shown(tuple(shape)), expected)


def weight_files(function: Function) -> Iterator[Violation]:
    """A file of weights that is too large."""
    weights = function.program.weights
    if function.is_first and weights is not None and weights.nbytes > LARGEST_WEIGHT_FILE:
        limit = f"at most {LARGEST_WEIGHT_FILE / 1e9:g} GB"
        yield Violation(WEIGHT_FILE.name, FILE, f"{weights.nbytes / 1e9:.2f} GB", limit)
