"""Checks of shapes: sizes that depend on values, ranks, long axes, declared types."""

from __future__ import annotations

from collections.abc import Iterator

from voxcpm_constants.bounds import LARGEST_RANK, LONGEST_AXIS
from voxcpm_runtime.backends.portable.package import Argument, Operation

from .function import PROGRAM, Function, Violation, agrees, shown, violation

# Operations, and the inputs whose values decide the size of the result.
SIZES: dict[str, tuple[str, ...]] = {
    "conv_transpose": ("output_shape",),
    "fill": ("shape",),
    "one_hot": ("one_hot_vector_size",),
    "pad": ("pad",),
    "random_bernoulli": ("shape",),
    "random_normal": ("shape",),
    "random_uniform": ("shape",),
    "range_1d": ("start", "end", "step"),
    "reshape": ("shape",),
    "slice_by_index": ("begin", "end", "stride"),
    "slice_by_size": ("size",),
    "split": ("split_sizes", "num_splits"),
    "tile": ("reps",),
    "topk": ("k",),
    "upsample_bilinear": ("scale_factor_height", "scale_factor_width"),
    "upsample_nearest_neighbor": ("scale_factor_height", "scale_factor_width"),
}

# Operations whose result is as long as the values of their input make it.
COUNTED = ("non_zero", "non_maximum_suppression")


def value_shaped(function: Function) -> Iterator[Violation]:
    """Tensors whose size is computed while the model runs."""
    for operation in function.program.operations:
        kind = operation.kind
        if kind in COUNTED:
            yield violation(operation, "a result as long as its input's values make it", "a known length")
        for size in _sizes(function, operation):
            argument = next(a for a in operation.inputs[size] if _is_computed(function, a))
            way = " → ".join((*_way(function, argument), kind))
            yield violation(operation, f"{size} is computed: {way}", f"a constant {size}")


def _sizes(function: Function, operation: Operation) -> Iterator[str]:
    """Names of the inputs that decide the result's size and are computed."""
    for size in SIZES.get(operation.kind, ()):
        if any(_is_computed(function, argument) for argument in operation.inputs.get(size, ())):
            if operation.kind == "slice_by_index" and not _is_sized_by_bounds(function, operation):
                continue
            yield size


def _is_computed(function: Function, argument: Argument) -> bool:
    return isinstance(argument, str) and argument in function.computed


def _is_sized_by_bounds(function: Function, operation: Operation) -> bool:
    """Whether a slice keeps an axis of which it does not take everything: one that is squeezed has a known size."""
    none = [False] * len(function.type(operation.inputs["x"][0]).shape)
    begin, end, squeezed = (
        function.constant(operation, f"{mask}_mask", none) for mask in ("begin", "end", "squeeze")
    )
    return any(not (s or (b and e)) for b, e, s in zip(begin, end, squeezed, strict=True))


def _way(function: Function, argument: Argument) -> list[str]:
    """Kinds of the operations that compute a value, the earliest first, along their first computed inputs."""
    kinds: list[str] = []
    current: Argument | None = argument
    while isinstance(current, str) and current in function.producers:
        operation = function.producers[current]
        kinds.append(operation.kind)
        arguments = (a for values in operation.inputs.values() for a in values)
        current = None if operation.kind == "shape" else next(
            (a for a in arguments if _is_computed(function, a)), None
        )  # fmt: skip
    return kinds[::-1]


def ranks(function: Function) -> Iterator[Violation]:
    """Tensors with too many axes."""
    for name, kind, type_ in function.values():
        if len(type_.shape) > LARGEST_RANK:
            found = f"rank {len(type_.shape)}: {shown(type_.shape)}"
            yield Violation(name, kind, found, f"at most rank {LARGEST_RANK}")


def long_axes(function: Function) -> Iterator[Violation]:
    """Tensors with too many elements along an axis, at the length at which it is longest."""
    for name, kind, _ in function.values():
        shapes = [(function.shape(name, length), length) for length in function.lengths]
        longest, shape, length = max(
            ((max((axis or 0 for axis in shape), default=0), shape, length) for shape, length in shapes),
            key=lambda found: found[0],
        )
        if longest > LONGEST_AXIS:
            found = f"{shown(shape)}{function.at(length)}"
            yield Violation(name, kind, found, f"at most {LONGEST_AXIS} elements along an axis")


def declared_shapes(function: Function) -> Iterator[Violation]:
    """Values whose declared shape is not the inferred one, and operations that have no shape at some length."""
    for length in function.lengths:
        for name, message in length.failures:
            kind = function.producers[name].kind if name in function.producers else PROGRAM
            yield Violation(name, kind, f"{message}{function.at(length)}", "shapes that fit")
    for name, kind, type_ in function.values():
        wrong = (
            (length.shapes[name], length)
            for length in function.lengths
            if name in length.shapes and not agrees(type_.shape, length.shapes[name])
        )
        if first := next(wrong, None):
            shape, length = first
            yield Violation(
                name, kind, f"declared {shown(type_.shape)}", f"{shown(shape)}{function.at(length)}"
            )
