"""One function of a Core AI program as the rules see it: its operations, types and constants, read without torch.

Types are read from their text (`tensor<1x2x?xf16>`), and operations through coreai-core's bindings of MLIR.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from voxcpm_constants.errors import BundleError, InputError, first_line
from voxcpm_runtime.backends.core_ai.step_model import INSTALL_CORE_AI

from .function import INPUT, Shape

CONSTANT = "constant"

_TENSOR = re.compile(r"tensor<((?:[\d?]+x)*)(\w+)>")
_NUMBER = re.compile(r"-?\d+(?:\.\d+(?:e[+-]\d+)?)?")


class Tensor(NamedTuple):
    """A value of a program, the operation that computes it, or `input`, and its type."""

    value: Any
    kind: str
    shape: Shape
    dtype: str


@dataclass(frozen=True)
class CoreAIFunction:
    """One function of a Core AI program. `graph` is its MLIR operation, and `program` what its memory belongs to."""

    name: str
    graph: Any
    program: Any
    is_first: bool
    """Whether it is the program's first function, on which checks of the whole program run."""
    nbytes: int
    """Bytes of the program's file: constants and graph."""
    producer: str | None
    """What wrote the program, from its metadata.json."""

    @cached_property
    def operations(self) -> list[Any]:
        """All operations in order, those of nested regions after the operation that they belong to."""
        return list(_nested(self.graph))

    @property
    def operation_count(self) -> int:
        """Operations that compute something."""
        return sum(kind(operation) != CONSTANT for operation in self.operations)

    @cached_property
    def arguments(self) -> dict[Any, str]:
        """The function's inputs and states, and their names."""
        declared = self.graph.attributes["arg_attrs"]
        values = self.graph.regions[0].blocks[0].arguments
        return {v: own["coreai.name"].value for v, own in zip(values, declared, strict=True)}

    @cached_property
    def _numbering(self) -> Any:
        return importlib.import_module("coreai._compiler.ir").AsmState(self.graph)

    def name_of(self, value: Any) -> str:
        """The name of an argument, or a value's number in the program's text: `%108`."""
        return self.arguments.get(value) or str(value.get_name(self._numbering))

    @cached_property
    def computed(self) -> set[Any]:
        """The values that depend on an input or a state."""
        found = set(self.arguments)
        for operation in self.operations:
            if operation.regions or any(operand in found for operand in operation.operands):
                found.update(operation.results)
        return found

    def tensors(self) -> Iterator[Tensor]:
        """Inputs, states and results of operations, except constants."""
        yield from (tensor(value, INPUT) for value in self.arguments if _TENSOR.search(str(value.type)))
        for operation in self.operations:
            if kind(operation) != CONSTANT:
                for value in operation.results:
                    if _TENSOR.search(str(value.type)):
                        yield tensor(value, kind(operation))


def tensor(value: Any, kind: str) -> Tensor:
    """A value whose type is a tensor, or a handle of one."""
    ((axes, dtype),) = _TENSOR.findall(str(value.type))
    shape = tuple(None if axis == "?" else int(axis) for axis in axes.split("x")[:-1])
    return Tensor(value, kind, shape, dtype)


def kind(operation: Any) -> str:
    """An operation's name, without the dialect and without `broadcasting_`: `mul` for both forms of a product."""
    return str(operation.operation.name).rpartition(".")[2].removeprefix("broadcasting_")


def producer(value: Any) -> Any | None:
    """The operation that computes a value; None for an argument."""
    owner = value.owner
    return owner if hasattr(owner, "operands") else None


def numbers(value: Any) -> list[float] | None:
    """The elements of a small constant, one for a splat; None for a value that is computed."""
    owner = producer(value)
    if owner is None or kind(owner) != CONSTANT:
        return None
    text = str(owner.attributes["value"]).partition(" : ")[0]
    return [float(number) for number in _NUMBER.findall(text)]


def read_program(path: Path) -> list[CoreAIFunction]:
    """The functions of the program at `path`, the default one first.

    Raises InputError where Core AI's package is missing, and BundleError for a program that it cannot read.
    """
    try:
        # It takes half a second to import, and may be absent.
        authoring = importlib.import_module("coreai.authoring")
    except ImportError:
        raise InputError(
            f"a bundle for macos27 needs Apple's Core AI to be linted: {INSTALL_CORE_AI}"
        ) from None
    try:
        program = authoring.AIModelAsset.load(path).program
        module = program._module._mlir_module.operation  # noqa: SLF001 - no public access
        metadata = json.loads((path / "metadata.json").read_text(encoding="utf-8"))
    except Exception as error:  # noqa: BLE001 - Core AI raises any class
        raise BundleError(f"{path}: not a Core AI program ({first_line(error)}); convert again") from None
    graphs = [graph.operation for graph in module.regions[0].blocks[0].operations]
    return [
        CoreAIFunction(
            name=graph.attributes["sym_name"].value,
            graph=graph,
            program=program,
            is_first=graph is graphs[0],
            nbytes=(path / "main.mlirb").stat().st_size,
            producer=metadata.get("producer"),
        )
        for graph in graphs
    ]


def _nested(operation: Any) -> Iterator[Any]:
    for region in operation.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield inner
                yield from _nested(inner.operation)
