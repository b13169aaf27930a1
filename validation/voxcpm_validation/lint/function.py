"""One function of a package as the rules see it: its program, what describes it, and what it was declared to be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from voxcpm_constants.step_models import Precision, StepModel
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

from .lengths import Length, infer_lengths

Shape = tuple[int | None, ...]

# Kinds of findings that are not about an operation.
INPUT = "input"
PROGRAM = "program"


class Violation(NamedTuple):
    """What a rule found at one operation, and what it expects there."""

    operation: str
    kind: str
    found: str
    expected: str


@dataclass(frozen=True)
class Function:
    """One function of a package, with the declaration of the step model that it computes.

    `parameters` are the inputs of the MIL function itself, including states; `program.inputs` and `program.states`
    are those of the model's description. `is_first`: checks of the whole package run on this function.
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
        """The shape of an argument at one length: inferred, or if that failed as declared."""
        declared = self.type(argument).shape
        return length.shapes.get(argument, declared) if isinstance(argument, str) else declared

    def at(self, length: Length) -> str:
        """Words that name a length, for a function that accepts several: ` with audio (1, 1, 7056)`."""
        return f" with {length.label}" if len(self.lengths) > 1 else ""


def read_function(
    package: Path, name: str, declared: StepModel, *, precision: Precision, is_first: bool = True
) -> Function:
    """Read one function of a package. Raises PackageError for a package that is incomplete or damaged."""
    inputs = read_specification(package).mlProgram.functions[name].inputs
    parameters = {value.name: tensor_type(value.type) for value in inputs}
    return Function(name, read_package(package, name), parameters, declared, precision, is_first)


def violation(operation: Operation, found: str, expected: str) -> Violation:
    """A violation at an operation. One without a result, which writes a state, has the state's name."""
    names = [name for name, _ in operation.outputs] or list(_names(operation))
    return Violation(names[0], operation.kind, found, expected)


def constants_of(operation: Operation) -> Iterator[Constant]:
    """The constants that are given within an operation: a `const` operation's value, or inputs that have no name."""
    given = (
        *operation.attributes.values(),
        *(a for arguments in operation.inputs.values() for a in arguments),
    )
    return (argument for argument in given if isinstance(argument, Constant))


def shown(shape: Shape) -> str:
    """A shape in words, with `?` for an axis of unknown length: `(1, ?, 64)`."""
    return "(" + ", ".join("?" if axis is None else str(axis) for axis in shape) + ")"


def agrees(declared: Shape, actual: Shape) -> bool:
    """Whether two shapes have the same rank, and the same length on each axis where both are known."""
    return len(declared) == len(actual) and all(
        a is None or b is None or a == b for a, b in zip(declared, actual, strict=True)
    )


def _names(operation: Operation) -> Iterator[str]:
    return (a for arguments in operation.inputs.values() for a in arguments if isinstance(a, str))
