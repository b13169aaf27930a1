"""Core AI programs and their rules. Programs are read with coreai-core's MLIR bindings, without torch.

Types are parsed from their text (`tensor<1x2x?xf16>`). The programs target the GPU.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from voxcpm_constants.errors import BundleError, InputError, first_line, install_command

from .function import INPUT, Shape, Violation, format_shape
from .rules import Rule

MAX_PROGRAM = 2_000_000_000
SMALL_KERNEL, SMALL_STRIDE = 8, 16
"""Transposed convolutions are computed correctly below these."""
ZOO = "john-rocky/coreai-model-zoo"

_TENSOR = re.compile(r"tensor<((?:[\d?]+x)*)(\w+)>")
_NUMBER = re.compile(r"-?\d+(?:\.\d+(?:e[+-]\d+)?)?")
_ROUNDED_DOWN = {"floor", "ceil", "trunc"}


@dataclass(frozen=True)
class CoreAIFunction:
    """One function of a Core AI program. `graph` is its MLIR operation, whose memory `program` owns."""

    name: str
    graph: Any
    program: Any
    is_first: bool
    """Whether it is the program's first function, on which checks of the whole program run."""
    nbytes: int
    """Bytes of the program's file: constants and graph."""

    @cached_property
    def operations(self) -> list[Any]:
        """All operations in order; those of nested regions follow their parent."""
        return list(_nested(self.graph))

    @property
    def operation_count(self) -> int:
        """Operations that compute something."""
        return sum(_kind(operation) != "constant" for operation in self.operations)

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


def _nested(operation: Any) -> Iterator[Any]:
    for region in operation.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield inner
                yield from _nested(inner.operation)


def _kind(operation: Any) -> str:
    """An operation's name without dialect and `broadcasting_`: `mul` for both forms of a product."""
    return str(operation.operation.name).rpartition(".")[2].removeprefix("broadcasting_")


def _shape(value: Any) -> Shape:
    """The shape of a value whose type is a tensor, or a handle of one."""
    ((axes, _),) = _TENSOR.findall(str(value.type))
    return tuple(None if axis == "?" else int(axis) for axis in axes.split("x")[:-1])


def _producer(value: Any) -> Any | None:
    """The operation that computes a value; None for an argument."""
    owner = value.owner
    return owner if hasattr(owner, "operands") else None


def _numbers(value: Any) -> list[float] | None:
    """The elements of a small constant (one for a splat); None for a computed value."""
    owner = _producer(value)
    if owner is None or _kind(owner) != "constant":
        return None
    text = str(owner.attributes["value"]).partition(" : ")[0]
    return [float(number) for number in _NUMBER.findall(text)]


def read_program(path: Path) -> list[CoreAIFunction]:
    """The functions of the program at `path`, the default one first.

    Raises InputError if Core AI's package is not installed, and BundleError for an unreadable program.
    """
    try:
        # Takes half a second to import, and may be missing.
        authoring = importlib.import_module("coreai.authoring")
    except ImportError:
        raise InputError(
            f"linting a macos27 bundle needs Apple's Core AI: {install_command('coreai')}"
        ) from None
    try:
        program = authoring.AIModelAsset.load(path).program
        module = program._module._mlir_module.operation  # noqa: SLF001 - no public access
    except Exception as error:  # noqa: BLE001 - Core AI raises any class
        raise BundleError(f"{path}: not a Core AI program ({first_line(error)}); convert again") from None
    graphs = [graph.operation for graph in module.regions[0].blocks[0].operations]
    size = (path / "main.mlirb").stat().st_size
    return [
        CoreAIFunction(graph.attributes["sym_name"].value, graph, program, graph is graphs[0], size)
        for graph in graphs
    ]


def _operations(
    found_in: Callable[[Any], str | None], expected: str
) -> Callable[[CoreAIFunction], Iterator[Violation]]:
    """A check of each operation. found_in: describes its fault; None if there is none."""

    def check(function: CoreAIFunction) -> Iterator[Violation]:
        for operation in function.operations:
            if found := found_in(operation):
                yield _at(function, operation, found, expected)

    return check


def _at(function: CoreAIFunction, operation: Any, found: str, expected: str) -> Violation:
    return Violation(function.name_of(operation.results[0]), _kind(operation), found, expected)


def _dynamic_shapes(function: CoreAIFunction) -> Iterator[Violation]:
    values = [(value, INPUT) for value in function.arguments]
    values += [(value, _kind(operation)) for operation in function.operations for value in operation.results]
    for value, kind in values:
        if _TENSOR.search(str(value.type)) and None in (shape := _shape(value)):
            yield Violation(function.name_of(value), kind, format_shape(shape), "fixed lengths")


def _state_sources(function: CoreAIFunction) -> Iterator[Any]:
    """Operations whose results are written into a state."""
    for operation in function.operations:
        if _kind(operation) == "write_handle" and (source := _producer(operation.operands[1])) is not None:
            yield source


def _scatters(function: CoreAIFunction) -> Iterator[Violation]:
    for source in _state_sources(function):
        if _kind(source).startswith("scatter"):
            yield _at(function, source, _kind(source), "slice_update")


def _computed_begins(function: CoreAIFunction) -> Iterator[Violation]:
    expected = "a constant begin, or rows as outputs (--kv-cache rows)"
    for source in _state_sources(function):
        if _kind(source) == "slice_update" and source.operands[1] in function.computed:
            yield _at(function, source, "a computed begin", expected)


def _unread_writes(function: CoreAIFunction) -> Iterator[Violation]:
    """Finds consecutive writes to a state without a read in between, which the GPU merges."""
    unread: set[Any] = set()
    for operation in function.operations:
        if _kind(operation) == "read_handle":
            uses = {_kind(use.owner) for use in operation.results[0].uses}
            if uses - {"slice_update", "write_handle"}:
                unread.discard(operation.operands[0])
        elif _kind(operation) == "write_handle":
            state = operation.operands[0]
            if state in unread:
                name = function.name_of(state)
                yield Violation(name, "write_handle", f"a second write to {name}", "a read in between")
            unread.add(state)


def _large_transposed_convolution(operation: Any) -> str | None:
    if not _kind(operation).startswith("conv_transpose"):
        return None
    kernel = max(axis or 0 for axis in _shape(operation.operands[1])[2:])
    stride = int(max(_numbers(operation.operands[2]) or [0]))
    is_large = kernel >= SMALL_KERNEL or stride >= SMALL_STRIDE
    return f"kernel {kernel}, stride {stride}" if is_large else None


def _rounded_down(operation: Any) -> str | None:
    """The converter lowers floor, ceil and trunc to floor divisions by 1."""
    if _kind(operation) == "floor_divide" and _numbers(operation.operands[1]) == [1.0]:
        return "x // 1"
    return _kind(operation) if _kind(operation) in _ROUNDED_DOWN else None


def _program_size(function: CoreAIFunction) -> Iterator[Violation]:
    if function.is_first and function.nbytes > MAX_PROGRAM:
        found = f"{function.nbytes / 1e9:.2f} GB"
        yield Violation("main.mlirb", "file", found, f"at most {MAX_PROGRAM / 1e9:g} GB (--split-gigabytes)")


CORE_AI_RULES: tuple[Rule, ...] = (
    Rule(
        "dynamic-shape",
        _dynamic_shapes,
        "The GPU of macOS 27.0 computed zeros for a program with dynamic shapes.",
        (f"{ZOO} decider-0.8b-port.md",),
    ),
    Rule(
        "scattered-state",
        _scatters,
        "Apple's own models avoid scatters into a cache, as Metal crashed in a prefill.",
        ("apple/coreai-models cache_scatter.py",),
    ),
    Rule(
        "computed-begin",
        _computed_begins,
        "A small program with one traps on the GPU of macOS 27.0, and the Neural Engine rejects it.",
        ("apple/coreai-models 5", "apple/coreai-torch 6", f"{ZOO} coreai-beta-mpsgraph-kvwrite-bug.md"),
        "a risk: three published apps write their caches this way on the GPU: VoxCPM and Unlimited-OCR of "
        f"{ZOO}, and RahulRachuri/pocket-tts-swift (NOTES 11)",
    ),
    Rule(
        "unread-write",
        _unread_writes,
        "The GPU drops all but one of these writes.",
        (f"{ZOO} pipelined-engine.md",),
    ),
    Rule(
        "transposed-convolution",
        _operations(
            _large_transposed_convolution,
            f"a kernel below {SMALL_KERNEL} and a stride below {SMALL_STRIDE}",
        ),
        "The CPU computes larger ones wrongly.",
        (f"{ZOO} 18",),
    ),
    Rule(
        "rounding-down",
        _operations(_rounded_down, "2·x // 2"),
        "The GPU returns the value unrounded; floor-dividing twice the value by 2 is correct.",
        ("apple/coreai-torch 10",),
    ),
    Rule(
        "program-size",
        _program_size,
        "An iPhone specialises larger ones only with the memory entitlement, or compiled ahead of time.",
        ("apple/coreai-models guidance.md", f"{ZOO} pipelined-engine.md"),
    ),
)
