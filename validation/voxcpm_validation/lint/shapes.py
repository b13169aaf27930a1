"""Checks of shapes and sizes: those that depend on values, ranks, long axes, declared types, states, weight files."""

from __future__ import annotations

from collections.abc import Iterator

from voxcpm_constants.bounds import LARGEST_RANK, LARGEST_WEIGHT_FILE, LONGEST_AXIS, STATE_MULTIPLE
from voxcpm_constants.tensor_files import WEIGHT_FILE
from voxcpm_runtime.backends.portable.package import Operation

from .function import INPUT, PROGRAM, Function, Violation, agrees, shown, violation

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
    """No tensor's size is computed while the model runs."""
    for operation in function.program.operations:
        if operation.kind in COUNTED:
            yield violation(operation, "a result as long as its input's values make it", "a known length")
        if operation.kind == "slice_by_index" and not _is_sized_by_bounds(function, operation):
            continue
        for size in SIZES.get(operation.kind, ()):
            if any(function.is_computed(argument) for argument in operation.inputs.get(size, ())):
                yield violation(operation, f"{size} is computed", f"a constant {size}")


def _is_sized_by_bounds(function: Function, operation: Operation) -> bool:
    """Whether a slice keeps an axis of which it does not take everything: one that is squeezed has a known size."""
    none = [False] * len(function.type(operation.inputs["x"][0]).shape)
    begin, end, squeezed = (
        function.constant(operation, f"{mask}_mask", none) for mask in ("begin", "end", "squeeze")
    )
    return any(not (s or (b and e)) for b, e, s in zip(begin, end, squeezed, strict=True))


def ranks(function: Function) -> Iterator[Violation]:
    """Tensors have at most LARGEST_RANK axes."""
    for name, kind, type_ in function.values():
        if len(type_.shape) > LARGEST_RANK:
            found = f"rank {len(type_.shape)}: {shown(type_.shape)}"
            yield Violation(name, kind, found, f"at most rank {LARGEST_RANK}")


def long_axes(function: Function) -> Iterator[Violation]:
    """No axis of an activation has more than LONGEST_AXIS elements at any enumerated length."""
    for name, kind, _ in function.values():
        shapes = [(function.shape(name, length), length) for length in function.lengths]
        shape, length = max(shapes, key=lambda one: max((axis or 0 for axis in one[0]), default=0))
        if any((axis or 0) > LONGEST_AXIS for axis in shape):
            found = f"{shown(shape)}{function.at(length)}"
            yield Violation(name, kind, found, f"at most {LONGEST_AXIS} elements along an axis")


def declared_shapes(function: Function) -> Iterator[Violation]:
    """Every declared shape is the one that ONNX infers at each enumerated length."""
    for length in function.lengths:
        if length.failure:
            found = f"{length.failure}{function.at(length)}"
            yield Violation(function.name, PROGRAM, found, "shapes that fit")
    for name, kind, type_ in function.values():
        for length in function.lengths:
            if not agrees(type_.shape, length.shapes.get(name, type_.shape)):
                inferred = f"{shown(length.shapes[name])}{function.at(length)}"
                yield Violation(name, kind, f"declared {shown(type_.shape)}", inferred)
                break


def dynamic_inputs(function: Function) -> Iterator[Violation]:
    """Inputs have fixed or enumerated shapes."""
    for given in function.program.inputs:
        if any(low != high for shape in given.shapes for low, high in shape):
            yield Violation(given.name, INPUT, given.describe(), "fixed or enumerated shapes")


def state_sizes(function: Function) -> Iterator[Violation]:
    """The last two axes of a state are multiples of STATE_MULTIPLE."""
    for state in function.program.states:
        shape = state.fixed_shape or ()
        if any(axis % STATE_MULTIPLE for axis in shape[-2:]):
            expected = f"multiples of {STATE_MULTIPLE} as the last two axes"
            yield Violation(state.name, "state", shown(tuple(shape)), expected)


def weight_files(function: Function) -> Iterator[Violation]:
    """The weights of a package have at most LARGEST_WEIGHT_FILE bytes."""
    weights = function.program.weights
    if function.is_first and weights is not None and weights.nbytes > LARGEST_WEIGHT_FILE:
        limit = f"at most {LARGEST_WEIGHT_FILE / 1e9:g} GB"
        yield Violation(WEIGHT_FILE.name, "file", f"{weights.nbytes / 1e9:.2f} GB", limit)
