"""The rules for Core AI programs, which run on the GPU: the checks, and the table with reasons and sources."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from voxcpm_conversion.recipes import BLOCK

from .core_ai import CoreAIFunction, Tensor, kind, numbers, producer, tensor
from .function import Violation, shown
from .rules import Rule

MAX_PROGRAM = 2_000_000_000
SMALL_KERNEL, SMALL_STRIDE = 8, 16
"""Transposed convolutions are right below these."""

ZOO = "john-rocky/coreai-model-zoo"

_ROUNDED_DOWN = {"floor", "ceil", "trunc"}
_ORDERED = {"topk", "sort", "argsort", "argmax", "reduce_index"}


def _tensors(
    is_wrong: Callable[[Tensor], bool], expected: str
) -> Callable[[CoreAIFunction], Iterator[Violation]]:
    """A check for inputs, states and results."""

    def check(function: CoreAIFunction) -> Iterator[Violation]:
        for t in function.tensors():
            if is_wrong(t):
                yield Violation(function.name_of(t.value), t.kind, f"{shown(t.shape)} {t.dtype}", expected)

    return check


def _at(function: CoreAIFunction, operation: Any, found: str, expected: str) -> Violation:
    return Violation(function.name_of(operation.results[0]), kind(operation), found, expected)


def _writes(function: CoreAIFunction) -> Iterator[tuple[Any, Any]]:
    """(operation that computes what is written into a state, the write)."""
    for operation in function.operations:
        if kind(operation) == "write_handle" and (source := producer(operation.operands[1])) is not None:
            yield source, operation


def _scatters(function: CoreAIFunction) -> Iterator[Violation]:
    for source, _ in _writes(function):
        if kind(source).startswith("scatter"):
            yield _at(function, source, kind(source), "slice_update")


def _computed_begins(function: CoreAIFunction) -> Iterator[Violation]:
    for source, _ in _writes(function):
        if kind(source) == "slice_update" and source.operands[1] in function.computed:
            yield _at(
                function, source, "a computed begin", "a constant begin, or rows as outputs (--kv-cache rows)"
            )


def _unread_writes(function: CoreAIFunction) -> Iterator[Violation]:
    """A read that only feeds the next write does not count: the GPU merges such chains."""
    unread: set[Any] = set()
    for operation in function.operations:
        if kind(operation) == "read_handle":
            uses = {kind(use.owner) for use in operation.results[0].uses}
            if uses - {"slice_update", "write_handle"}:
                unread.discard(operation.operands[0])
        elif kind(operation) == "write_handle":
            state = operation.operands[0]
            if state in unread:
                name = function.name_of(state)
                yield Violation(name, "write_handle", f"a second write to {name}", "a read of the first one")
            unread.add(state)


def _transposed_convolutions(function: CoreAIFunction) -> Iterator[Violation]:
    for operation in function.operations:
        if kind(operation).startswith("conv_transpose"):
            kernel = max(axis or 0 for axis in tensor(operation.operands[1], "").shape[2:])
            stride = int(max(numbers(operation.operands[2]) or [0]))
            if kernel >= SMALL_KERNEL or stride >= SMALL_STRIDE:
                expected = f"a kernel below {SMALL_KERNEL} and a stride below {SMALL_STRIDE}"
                yield _at(function, operation, f"kernel {kernel}, stride {stride}", expected)


def _rounding(function: CoreAIFunction) -> Iterator[Violation]:
    """The converter makes divisions by 1, rounded down, of floor, ceil and trunc."""
    for operation in function.operations:
        of_one = kind(operation) == "floor_divide" and numbers(operation.operands[1]) == [1.0]
        if of_one or kind(operation) in _ROUNDED_DOWN:
            yield _at(function, operation, "x // 1" if of_one else kind(operation), "2·x // 2")


def _sorting(function: CoreAIFunction) -> Iterator[Violation]:
    for operation in function.operations:
        if kind(operation) in _ORDERED:
            yield _at(function, operation, kind(operation), "none of these")


def _returned_arguments(function: CoreAIFunction) -> Iterator[Violation]:
    for value in function.operations[-1].operands:
        if value in function.arguments:
            yield Violation(function.name_of(value), "output", "an argument", "a computed value")


def _blocks(function: CoreAIFunction) -> Iterator[Violation]:
    for operation in function.operations:
        if kind(operation) == "blockwise_shift_scale":
            data, scale = (tensor(value, "").shape for value in list(operation.operands)[:2])
            blocks = [(d or 0) // (s or 1) for d, s in zip(data, scale, strict=True)]
            whole, single = [d or 0 for d in data[2:]], [1 for _ in data[2:]]
            if blocks[:2] != [1, BLOCK] or blocks[2:] not in (whole, single):
                yield _at(function, operation, f"blocks of {blocks}", f"blocks of {BLOCK} along the inputs")


def _program_size(function: CoreAIFunction) -> Iterator[Violation]:
    if function.is_first and function.nbytes > MAX_PROGRAM:
        found = f"{function.nbytes / 1e9:.2f} GB"
        yield Violation("main.mlirb", "file", found, f"at most {MAX_PROGRAM / 1e9:g} GB (--split-gigabytes)")


def _producers(function: CoreAIFunction) -> Iterator[Violation]:
    if function.is_first and not function.producer:
        yield Violation("metadata.json", "file", "no producer", "coreai-core and its version")


CORE_AI_RULES: tuple[Rule, ...] = (
    Rule(
        "dynamic-shape",
        "every axis of every type has a fixed length",
        "The GPU of macOS 27.0 computed zeros for a program with dynamic shapes.",
        (f"{ZOO} decider-0.8b-port.md",),
        _tensors(lambda t: None in t.shape, "fixed lengths"),
    ),
    Rule(
        "scattered-state",
        "states are written with `slice_update`",
        "Apple's own models avoid scatters into a cache, as Metal crashed in a prefill.",
        ("apple/coreai-models cache_scatter.py",),
        _scatters,
    ),
    Rule(
        "computed-begin",
        "a state is not written at a position that is computed",
        "A small program that does so traps on the GPU of macOS 27.0, and the Neural Engine refuses it.",
        ("apple/coreai-models 5", "apple/coreai-torch 6", f"{ZOO} coreai-beta-mpsgraph-kvwrite-bug.md"),
        _computed_begins,
        "a risk: three published apps write their caches so on the GPU: VoxCPM and Unlimited-OCR of "
        f"{ZOO}, and RahulRachuri/pocket-tts-swift (NOTES 11)",
    ),
    Rule(
        "unread-write",
        "between two writes to a state something other than the second one reads it",
        "The GPU drops all but one of such writes.",
        (f"{ZOO} pipelined-engine.md",),
        _unread_writes,
    ),
    Rule(
        "transposed-convolution",
        f"transposed convolutions have kernels below {SMALL_KERNEL} and strides below {SMALL_STRIDE}",
        "Larger ones are computed wrongly on the CPU.",
        (f"{ZOO} 18",),
        _transposed_convolutions,
    ),
    Rule(
        "rounding-down",
        "nothing is rounded by floor, ceil or trunc, nor by a division by 1",
        "The GPU returns the value as it is; a division of twice the value by 2 is right.",
        ("apple/coreai-torch 10",),
        _rounding,
    ),
    Rule(
        "sorting",
        "nothing is sorted, and no index of a largest value is looked for",
        "An iPhone 17 Pro computed both wrongly.",
        ("apple/coreai-torch 115", "apple/coreai-torch 116", "apple/coreai-torch 66"),
        _sorting,
    ),
    Rule(
        "empty-tensor",
        "no axis has length 0",
        "Such a program aborts the process.",
        ("apple/coreai-torch 68",),
        _tensors(lambda t: 0 in t.shape, "at least one element"),
    ),
    Rule(
        "returned-argument",
        "no argument is returned as it is",
        "The converter may have dropped operations, such as a cast to integers and back.",
        ("apple/coreai-torch 9",),
        _returned_arguments,
    ),
    Rule(
        "weight-blocks",
        f"compressed weights have a scale for each block of {BLOCK} inputs",
        "With one scale a channel an M4 Max had a fifth of the speed, and early systems computed garbage.",
        (f"{ZOO} minicpm5-1b.md", f"{ZOO} compression-reference.md"),
        _blocks,
    ),
    Rule(
        "program-size",
        f"a program has at most {MAX_PROGRAM / 1e9:g} GB",
        "An iPhone specialises larger ones only with the memory entitlement, or compiled ahead of time.",
        ("apple/coreai-models guidance.md", f"{ZOO} pipelined-engine.md"),
        _program_size,
    ),
    Rule(
        "producer",
        "metadata.json names what wrote the program",
        "Programs without it are those of an early converter, which the system refuses.",
        ("apple/coreai-torch 37", "apple/coreai-torch 44"),
        _producers,
    ),
)
