"""The checks behind the rules for Core ML: shapes, sizes and arithmetic."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from voxcpm_constants.bounds import (
    MASKED_BATCH,
    MAX_AXIS_LENGTH,
    MAX_RANK,
    MAX_WEIGHT_FILE_BYTES,
    STATE_MULTIPLE,
)
from voxcpm_constants.tensor_files import WEIGHT_FILE
from voxcpm_runtime.backends.portable.package import Blob, Operation

from .function import INPUT, PROGRAM, Function, Violation, constants_of, format_shape, shapes_match, violation

# Operations, and the inputs whose values determine the output shape.
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

# Operations whose output length depends on the values of their input.
COUNTED = ("non_zero", "non_maximum_suppression")


def value_shaped(function: Function) -> Iterator[Violation]:
    """No tensor's shape is computed at run time."""
    for operation in function.program.operations:
        if operation.kind in COUNTED:
            yield violation(operation, "a length that depends on values", "a known length")
        if operation.kind == "slice_by_index" and not _is_sized_by_bounds(function, operation):
            continue
        for size in SIZES.get(operation.kind, ()):
            if any(function.is_computed(argument) for argument in operation.inputs.get(size, ())):
                yield violation(operation, f"{size} is computed", f"a constant {size}")


def _is_sized_by_bounds(function: Function, operation: Operation) -> bool:
    """Whether a slice keeps an axis that it takes a part of; a squeezed axis has a known size."""
    none = [False] * len(function.type(operation.inputs["x"][0]).shape)
    begin, end, squeezed = (
        function.constant(operation, f"{mask}_mask", none) for mask in ("begin", "end", "squeeze")
    )
    return any(not (s or (b and e)) for b, e, s in zip(begin, end, squeezed, strict=True))


def ranks(function: Function) -> Iterator[Violation]:
    """Tensors have at most MAX_RANK axes."""
    for name, kind, type_ in function.values():
        if len(type_.shape) > MAX_RANK:
            found = f"rank {len(type_.shape)}: {format_shape(type_.shape)}"
            yield Violation(name, kind, found, f"at most rank {MAX_RANK}")


def long_axes(function: Function) -> Iterator[Violation]:
    """No axis of an activation has more than MAX_AXIS_LENGTH elements at any enumerated length."""
    for name, kind, _ in function.values():
        shapes = [(function.shape(name, length), length) for length in function.lengths]
        shape, length = max(shapes, key=lambda one: max((axis or 0 for axis in one[0]), default=0))
        if any((axis or 0) > MAX_AXIS_LENGTH for axis in shape):
            found = f"{format_shape(shape)}{function.at(length)}"
            yield Violation(name, kind, found, f"at most {MAX_AXIS_LENGTH} elements along an axis")


def declared_shapes(function: Function) -> Iterator[Violation]:
    """Declared shapes equal those that ONNX infers at each enumerated length."""
    for length in function.lengths:
        if length.failure:
            found = f"{length.failure}{function.at(length)}"
            yield Violation(function.name, PROGRAM, found, "consistent shapes")
    for name, kind, type_ in function.values():
        for length in function.lengths:
            if not shapes_match(type_.shape, length.shapes.get(name, type_.shape)):
                inferred = f"{format_shape(length.shapes[name])}{function.at(length)}"
                yield Violation(name, kind, f"declared {format_shape(type_.shape)}", inferred)
                break


def dynamic_inputs(function: Function) -> Iterator[Violation]:
    """Inputs have fixed or enumerated shapes."""
    for given in function.program.inputs:
        if any(None in shape for shape in given.shapes):
            yield Violation(given.name, INPUT, given.describe(), "fixed or enumerated shapes")


def state_sizes(function: Function) -> Iterator[Violation]:
    """The last two axes of a state are multiples of STATE_MULTIPLE."""
    for state in function.program.states:
        shape = state.fixed_shape or ()
        if any(axis % STATE_MULTIPLE for axis in shape[-2:]):
            expected = f"multiples of {STATE_MULTIPLE} as the last two axes"
            yield Violation(state.name, "state", format_shape(tuple(shape)), expected)


def weight_files(function: Function) -> Iterator[Violation]:
    """The weights of a package have at most MAX_WEIGHT_FILE_BYTES bytes."""
    weights = function.program.weights
    if function.is_first and weights is not None and weights.nbytes > MAX_WEIGHT_FILE_BYTES:
        limit = f"at most {MAX_WEIGHT_FILE_BYTES / 1e9:g} GB"
        yield Violation(WEIGHT_FILE.name, "file", f"{weights.nbytes / 1e9:.2f} GB", limit)


_FLOATS = ("FLOAT16", "FLOAT32")
_TRANSPOSED = "conv_transpose"
_SLICES = ("slice_by_index", "slice_by_size")


def float32_arithmetic(function: Function) -> Iterator[Violation]:
    """Packages other than fp32 compute in fp16; casts at the boundary are allowed."""
    if function.declared.precision_in(function.precision) == "fp32":
        return
    for operation in function.program.operations:
        if operation.kind in ("cast", "const"):
            continue
        read = (a for arguments in operation.inputs.values() for a in arguments)
        dtypes = {function.type(a).dtype for a in read if function.is_computed(a)}
        if "FLOAT32" in dtypes | {type_.dtype for _, type_ in operation.outputs}:
            yield violation(operation, "fp32", "fp16")


def infinite_constants(function: Function) -> Iterator[Violation]:
    """All constants are finite."""
    for operation in function.program.operations:
        for constant in constants_of(operation):
            if constant.type.dtype in _FLOATS:
                data = constant.data
                elements = np.ravel(
                    function.program.read(data) if isinstance(data, Blob) else np.asarray(data)
                )
                finite = np.isfinite(elements)
                if not finite.all():
                    yield violation(operation, str(elements[np.argmin(finite)]), "finite numbers")
                    break


def selections(function: Function) -> Iterator[Violation]:
    """No `select`, and no widened 16-bit indices. coremltools' default passes add both before every lookup."""
    for operation in function.program.operations:
        if operation.kind == "select":
            yield violation(operation, "a select", "multiplication by a mask, or non-negative indices")
        elif operation.kind == "cast":
            (x,), ((_, result),) = operation.inputs["x"], operation.outputs
            if result.dtype == "INT32" and (narrow := function.type(x).dtype) in ("INT16", "UINT16"):
                yield violation(operation, f"{narrow} widened to INT32", f"indices that stay {narrow}")


def masked_batches(function: Function) -> Iterator[Violation]:
    """Attention with a mask (product, mask, softmax, product) has leading axes of less than MASKED_BATCH."""
    factors = {a for op in function.program.operations if op.kind == "matmul" for a in op.inputs["x"]}
    for operation in function.program.operations:
        if operation.kind != "softmax" or operation.outputs[0][0] not in factors:
            continue
        (x,) = operation.inputs["x"]
        mask = function.producers.get(x) if isinstance(x, str) else None
        if mask is None or mask.kind != "add" or not _is_product(function, mask):
            continue
        for length in function.lengths:
            shape = function.shape(x, length)
            if any(axis is not None and axis >= MASKED_BATCH for axis in shape[:-2]):
                expected = f"leading axes of less than {MASKED_BATCH}"
                yield violation(
                    operation, f"masked scores {format_shape(shape)}{function.at(length)}", expected
                )
                break


def _is_product(function: Function, addition: Operation) -> bool:
    terms = (a for name in ("x", "y") for a in addition.inputs[name] if isinstance(a, str))
    return any((p := function.producers.get(term)) is not None and p.kind == "matmul" for term in terms)


def blockwise_scales(function: Function) -> Iterator[Violation]:
    """No `constexpr_blockwise_shift_scale`, macOS 15's form of compressed weights, has fp16 scales."""
    for operation in function.program.operations:
        if operation.kind == "constexpr_blockwise_shift_scale":
            (data,), (scale,) = operation.inputs["data"], operation.inputs["scale"]
            if (dtype := function.type(scale).dtype) == "FLOAT16":
                yield violation(
                    operation, f"{function.type(data).dtype} with scales of {dtype}", "another form"
                )


def scatters_into_states(function: Function) -> Iterator[Violation]:
    """States are written with `slice_update`."""
    if function.program.states:
        for operation in function.program.operations:
            if operation.kind.startswith("scatter"):
                yield violation(operation, operation.kind, "slice_update")


def cropped_convolutions(function: Function) -> Iterator[Violation]:
    """Transposed convolutions are cropped by their padding, not by a slice."""
    for operation in function.program.operations:
        if operation.kind in _SLICES:
            (x,) = operation.inputs["x"]
            if isinstance(x, str) and _is_transposed(function.producers.get(x)):
                yield violation(operation, f"a slice of {x}", "padding that crops")


def padded_convolutions(function: Function) -> Iterator[Violation]:
    """Transposed convolutions are padded symmetrically, and `output_shape` matches stride, kernel and padding.

    coremltools sets a matching `output_shape` wherever lengths are fixed.
    """
    for operation in function.program.operations:
        if _is_transposed(operation):
            pad = function.constant(operation, "pad", [])
            if len(set(pad)) > 1:
                yield violation(operation, f"pad {pad}", "the same padding on all sides")
            given = function.constant(operation, "output_shape", [])[2:]
            lengths = (_length(function, operation, axis) for axis in range(len(given)))
            if given and (computed := list(lengths)) != given:
                yield violation(operation, f"output_shape {given}", f"{computed}")


def _length(function: Function, operation: Operation, axis: int) -> int | None:
    """The length of a spatial axis of a transposed convolution's result; None if its input has no fixed length."""
    (x,), (weight,) = operation.inputs["x"], operation.inputs["weight"]
    frames, taps = function.type(x).shape[axis + 2], function.type(weight).shape[axis + 2]
    if frames is None or taps is None:
        return None
    is_padded = function.constant(operation, "pad_type", "valid") == "custom"
    before, after = function.constant(operation, "pad", [])[2 * axis :][:2] if is_padded else (0, 0)
    stride, dilation = (
        function.constant(operation, name, {axis: 1})[axis] for name in ("strides", "dilations")
    )
    return (frames - 1) * stride + (taps - 1) * dilation + 1 - before - after


def _is_transposed(operation: Operation | None) -> bool:
    return operation is not None and operation.kind == _TRANSPOSED
