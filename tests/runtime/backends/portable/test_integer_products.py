import warnings
from pathlib import Path

import numpy as np
import pytest

from voxcpm_runtime.backends.portable import PortableStepModel
from voxcpm_runtime.backends.portable.cache import load_lowered

torch = pytest.importorskip("torch")

NOISE = 0.015
"""Relative error of unit-variance activations in 8 bits, and a margin."""
BLOCKS, WHOLE = b"MatMulNBits", b"MatMulIntegerToFloat"
RANGES = {"int4": (-8, 7), "int8": (-128, 127)}


def quantized(model):
    """The model with int8 weights, quantised in the conversion's way."""
    import coremltools.optimize.coreml as cto

    settings = cto.OpLinearQuantizerConfig(mode="linear_symmetric", weight_threshold=512)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return cto.linear_quantize_weights(model, config=cto.OptimizationConfig(global_config=settings))


def int8_rows(weight):
    """Symmetric 8-bit rounding of each row, by its definition."""
    scale = np.abs(weight).max(1, keepdims=True) / 127
    return np.round(weight / scale) * scale


def relative_error(result, expected):
    return float(np.sqrt(np.mean((result - expected) ** 2) / np.mean(expected**2)))


def normal(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def int8_linear(lab, weight, x, **more):
    """A package of a linear layer with an int8 weight."""
    path: Path = lab.save(
        quantized(lab.convert(lambda x: lab.mb.linear(x=x, weight=weight, **more), {"x": x}))
    )
    return path


PRODUCTS = [("saturating", 1, BLOCKS), ("saturating", 5, WHOLE), ("exact", 1, WHOLE), ("exact", 5, WHOLE)]


@pytest.mark.parametrize(("processor", "rows", "product"), PRODUCTS, indirect=["processor"])
@pytest.mark.usefixtures("processor")
def test_int8_linear_stays_8_bit_in_plain_mode(lab, rng, rows, product):
    weight, bias = normal(rng, 64, 96), normal(rng, 64)
    # Rows of different magnitude: with one scale for all, the small ones would be lost.
    x = (normal(rng, 1, rows, 96) * np.logspace(-3, 1, rows)[:, None]).astype(np.float32)
    package = int8_linear(lab, weight, x, bias=bias)
    expected = x @ int8_rows(weight).T + bias
    (plain,) = PortableStepModel(package, threads=1)({"x": x}).values()
    for row in range(rows):
        assert relative_error(plain[0, row] - bias, expected[0, row] - bias) < NOISE
    assert product in load_lowered(package).model
    (faithful,) = PortableStepModel(package, threads=1, mode="faithful")({"x": x}).values()
    np.testing.assert_allclose(faithful, expected, rtol=1e-3, atol=1e-3)
    assert product not in load_lowered(package, mode="faithful").model


def test_int8_matmul_of_an_untransposed_weight(lab, rng):
    weight, x = normal(rng, 96, 64), normal(rng, 1, 5, 96)
    package = lab.save(quantized(lab.convert(lambda x: lab.mb.matmul(x=x, y=weight), {"x": x})))
    (result,) = PortableStepModel(package, threads=1)({"x": x}).values()
    assert relative_error(result, x @ int8_rows(weight.T).T) < NOISE
    assert WHOLE in load_lowered(package).model


WIDE, NARROW = (128, 64), (64, 128)


@pytest.mark.parametrize("processor", ["exact", "kernels"], indirect=True)
@pytest.mark.parametrize(
    ("rows", "shape", "fine"), [(1, WIDE, True), (3, WIDE, True), (5, WIDE, False), (5, NARROW, True)]
)
@pytest.mark.parametrize("open_length", [False, True])
@pytest.mark.usefixtures("processor")
def test_small_and_narrowing_products_keep_precision(lab, rng, rows, shape, fine, open_length):
    """A second plane of bytes: the error falls from about 1 % to 1e-4."""
    layer = torch.nn.Linear(shape[1], shape[0], bias=False)
    x = normal(rng, 1, rows, shape[1])
    lengths = lab.ct.EnumeratedShapes([(1, n, shape[1]) for n in (1, 3, 5)]) if open_length else x.shape
    model = lab.ct.convert(
        torch.jit.trace(layer, torch.from_numpy(x)),
        inputs=[lab.ct.TensorType("x", shape=lengths)],
        minimum_deployment_target=lab.ct.target.macOS14,
        compute_precision=lab.ct.precision.FLOAT32,
        skip_model_load=True,
    )
    (result,) = PortableStepModel(lab.save(quantized(model)), threads=1)({"x": x}).values()
    error = relative_error(result, x @ int8_rows(layer.weight.detach().numpy()).T)
    assert error < 2e-4 if fine else 2e-3 < error < NOISE


@pytest.mark.parametrize("rows", [1, 8])
def test_int8_products_do_not_saturate(lab, rows):
    weight, x = np.full((64, 96), 0.7, np.float32), np.full((1, rows, 96), 3.0, np.float32)
    (result,) = PortableStepModel(int8_linear(lab, weight, x), threads=1)({"x": x}).values()
    np.testing.assert_allclose(result, np.full((1, rows, 64), 0.7 * 3 * 96), rtol=1e-2)


@pytest.mark.parametrize("others", [0, 1e4, np.nan])
@pytest.mark.parametrize("rows", [2, 5, 18])
def test_a_row_of_a_product_does_not_depend_on_the_others(lab, rng, rows, others):
    """The first row has no negative number, so its range is different."""
    weight, x = normal(rng, 64, 96), np.abs(normal(rng, rows, 96))
    run = PortableStepModel(int8_linear(lab, weight, x), threads=1)
    (before,) = run({"x": x}).values()
    x[1:] *= others
    (after,) = run({"x": x}).values()
    np.testing.assert_array_equal(after[0], before[0])
    assert not np.array_equal(after[1], before[1])
    if others == 0:
        np.testing.assert_array_equal(after[1], 0)


@pytest.mark.parametrize("shape", [(512, 256, 8), (32, 16, 8)], ids=["large", "small"])
@pytest.mark.parametrize("bias", [False, True])
def test_int8_transposed_convolution(lab, rng, shape, bias):
    """Large weights stay 8-bit and small ones are unpacked; the results are the same."""
    weight, x, offset = normal(rng, *shape), normal(rng, 1, shape[0], 5), 30 * normal(rng, shape[1])
    options = {"strides": [4], "pad_type": "custom", "pad": [4, 4], **({"bias": offset} if bias else {})}

    def build(x):
        return lab.mb.conv_transpose(x=x, weight=weight, **options)

    package = lab.save(quantized(lab.convert(build, {"x": x})))
    (result,) = PortableStepModel(package, threads=1)({"x": x}).values()
    by_output = weight.transpose(1, 0, 2)
    rounded = int8_rows(by_output.reshape(shape[1], -1)).reshape(by_output.shape).transpose(1, 0, 2)
    expected = torch.nn.functional.conv_transpose1d(
        torch.from_numpy(x), torch.from_numpy(rounded.astype(np.float32)),
        torch.from_numpy(offset) if bias else None, stride=4, padding=4,
    ).numpy()  # fmt: skip
    assert relative_error(result, expected) < NOISE
    assert (WHOLE in load_lowered(package).model) == (shape[0] == 512)


class Weight:
    """Random integers with a scale, and possibly an offset, for each block; `dense` is (integers − offset) · scale."""

    def __init__(self, rng, dtype, shape, scales, offset):
        from coremltools.converters.mil.mil import types

        low, high = RANGES[dtype]
        stored = types.nptype_from_builtin(types.string_to_builtin(dtype))
        integers = rng.integers(low, high, shape, np.int8, endpoint=True)
        offsets = rng.integers(low, high, scales, np.int8, endpoint=True) * np.int8(offset)
        factors = rng.uniform(0.5, 2, scales).astype(np.float32)
        self.arguments = {"data": integers.astype(stored), "scale": factors}
        if offset:
            self.arguments["offset"] = offsets.astype(stored)

        def spread(array):
            for axis, (size, count) in enumerate(zip(shape, scales, strict=True)):
                array = array.repeat(size // count, axis)
            return array.astype(np.float32)

        self.dense = (integers.astype(np.float32) - spread(offsets)) * spread(factors)


def linear(lab, weight, x, mode="plain"):
    """The result, and the lowered graph."""

    def build(x):
        return lab.mb.linear(x=x, weight=lab.mb.constexpr_blockwise_shift_scale(**weight.arguments))

    (result,) = lab.run(build, {"x": x}, "constexpr_blockwise_shift_scale", mode=mode)
    return result, load_lowered(lab.directory / "model.mlpackage", mode=mode).model


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize(("scales", "offset"), [((48, 4), False), ((48, 4), True), ((48, 1), False)])
def test_4_bit_weights_in_blocks_keep_their_bits_in_plain_mode(later_lab, rng, scales, offset, rows):
    weight = Weight(rng, "int4", (48, 128), scales, offset)
    x = (normal(rng, 1, rows, 128) * np.logspace(-3, 1, rows)[:, None]).astype(np.float32)
    (result, graph), expected = linear(later_lab, weight, x), x @ weight.dense.T
    for row in range(rows):
        assert relative_error(result[0, row], expected[0, row]) < NOISE
    assert BLOCKS in graph
    faithful, graph = linear(later_lab, weight, x, mode="faithful")
    np.testing.assert_allclose(faithful, expected, rtol=1e-4, atol=1e-2)
    assert BLOCKS not in graph


# Odd element counts, inline values, one scale for all, blocks of rows, block sizes without a product, zero points that
# end within a byte.
UNUSUAL = [((7, 9), (7, 3)), ((2, 3), (2, 1)), ((7, 9), (1, 1)), ((8, 96), (2, 3)), ((5, 96), (5, 3))]


@pytest.mark.parametrize(("shape", "scales"), UNUSUAL, ids=str)
def test_unusual_shapes_are_unpacked(later_lab, rng, shape, scales):
    weight, x = Weight(rng, "int4", shape, scales, offset=True), normal(rng, 1, shape[1])
    result, _ = linear(later_lab, weight, x)
    np.testing.assert_allclose(result, x @ weight.dense.T, rtol=1e-4, atol=1e-3)
