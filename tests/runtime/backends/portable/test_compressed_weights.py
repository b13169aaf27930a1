"""Block-wise quantised weights of macOS 15, compared with dequantisation in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from voxcpm_runtime.backends.portable import PackageError
from voxcpm_runtime.backends.portable.cache import load_lowered

# Relative error: that of 8-bit activations, and a margin.
ACTIVATION_NOISE = 0.015

RANGES = {"int4": (-8, 7), "uint4": (0, 15), "int8": (-128, 127), "uint8": (0, 255)}


class Weight:
    """Random integers with a scale, and possibly an offset, for each block; `dense` is (integers − offset) · scale."""

    def __init__(
        self,
        rng: np.random.Generator,
        dtype: str,
        shape: tuple[int, ...],
        scales: tuple[int, ...],
        offset: bool,
    ) -> None:
        from coremltools.converters.mil.mil import types

        low, high = RANGES[dtype]
        stored = types.nptype_from_builtin(types.string_to_builtin(dtype))
        whole = np.int8 if low else np.uint8
        integers = rng.integers(low, high, shape, whole, endpoint=True)
        offsets = rng.integers(low, high, scales, whole, endpoint=True) if offset else np.zeros(scales, whole)
        factors = rng.uniform(0.5, 2, scales).astype(np.float32)
        self.arguments = {"data": integers.astype(stored), "scale": factors}
        if offset:
            self.arguments["offset"] = offsets.astype(stored)

        def spread(array: np.ndarray) -> np.ndarray:
            for axis, (size, count) in enumerate(zip(shape, scales, strict=True)):
                array = array.repeat(size // count, axis)
            return array.astype(np.float32)

        self.dense = (integers.astype(np.float32) - spread(offsets)) * spread(factors)


def linear(lab: Any, weight: Weight, x: np.ndarray, **options: Any) -> np.ndarray:
    def build(x: Any) -> Any:
        return lab.mb.linear(x=x, weight=lab.mb.constexpr_blockwise_shift_scale(**weight.arguments))

    return lab.run(build, {"x": x}, "constexpr_blockwise_shift_scale", **options)[0]


def nodes(lab: Any, mode: str = "plain") -> bytes:
    return load_lowered(lab.directory / "model.mlpackage", mode=mode).model


def relative_error(result: np.ndarray, expected: np.ndarray) -> float:
    return float(np.sqrt(np.mean((result - expected) ** 2) / np.mean(expected**2)))


# dtype, scales of a weight (48, 128), offset
IN_BLOCKS = [
    ("int4", (48, 4), False),
    ("int4", (48, 4), True),
    ("int4", (48, 8), False),
    ("int4", (48, 2), True),
    ("int4", (48, 1), False),
    ("uint4", (48, 4), True),
    ("int8", (48, 4), False),
    ("int8", (48, 2), True),
]


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize(("dtype", "scales", "offset"), IN_BLOCKS)
def test_weights_in_blocks_keep_their_bits(
    later_lab: Any, rng: np.random.Generator, dtype: str, scales: tuple[int, int], offset: bool, rows: int
) -> None:
    weight = Weight(rng, dtype, (48, 128), scales, offset)
    # Rows of different magnitude: with one scale for all, the small ones would be lost.
    x = (rng.standard_normal((1, rows, 128)) * np.logspace(-3, 1, rows)[:, None]).astype(np.float32)
    result, expected = linear(later_lab, weight, x), x @ weight.dense.T
    for row in range(rows):
        assert relative_error(result[0, row], expected[0, row]) < ACTIVATION_NOISE
    assert b"MatMulNBits" in nodes(later_lab)


@pytest.mark.parametrize("offset", [False, True])
@pytest.mark.parametrize("dtype", RANGES)
def test_faithful_mode_unpacks_weights(
    later_lab: Any, rng: np.random.Generator, dtype: str, offset: bool
) -> None:
    weight, x = Weight(rng, dtype, (48, 128), (48, 4), offset), rng.standard_normal((3, 128), np.float32)
    result = linear(later_lab, weight, x, mode="faithful")
    np.testing.assert_allclose(result, x @ weight.dense.T, rtol=1e-4, atol=1e-2)
    assert b"MatMulNBits" not in nodes(later_lab, "faithful")


# Odd element counts, inline values, one scale for all, blocks of rows, block sizes without a product.
UNUSUAL = [((7, 9), (7, 3)), ((2, 3), (2, 1)), ((7, 9), (1, 1)), ((8, 96), (2, 3)), ((6, 40), (6, 5))]
UNPACKED = [(dtype, *sizes) for dtype in ("int4", "uint4", "int8") for sizes in UNUSUAL]
# Zero points that end within a byte.
UNPACKED.append(("int4", (5, 96), (5, 3)))


@pytest.mark.parametrize(("dtype", "shape", "scales"), UNPACKED, ids=str)
def test_unusual_shapes_are_unpacked(
    later_lab: Any, rng: np.random.Generator, dtype: str, shape: tuple[int, int], scales: tuple[int, int]
) -> None:
    weight, x = Weight(rng, dtype, shape, scales, offset=True), rng.standard_normal((1, shape[1]), np.float32)
    result = linear(later_lab, weight, x)
    np.testing.assert_allclose(result, x @ weight.dense.T, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("processor", "rows", "product"),
    [
        ("saturating", 1, b"MatMulNBits"),
        ("saturating", 5, b"MatMulIntegerToFloat"),
        ("exact", 1, b"MatMulIntegerToFloat"),
    ],
    indirect=["processor"],
)
@pytest.mark.usefixtures("processor")
def test_int8_with_a_scale_a_channel_stays_8_bit(
    later_lab: Any, rng: np.random.Generator, rows: int, product: bytes
) -> None:
    weight, x = (
        Weight(rng, "int8", (48, 128), (48, 1), offset=False),
        rng.standard_normal((rows, 128), np.float32),
    )
    assert relative_error(linear(later_lab, weight, x), x @ weight.dense.T) < ACTIVATION_NOISE
    assert product in nodes(later_lab)


@pytest.mark.parametrize("rows", [1, 5])
def test_matmul_of_an_untransposed_weight_in_blocks(
    later_lab: Any, rng: np.random.Generator, rows: int
) -> None:
    weight, x = (
        Weight(rng, "int4", (128, 48), (4, 48), offset=True),
        rng.standard_normal((rows, 128), np.float32),
    )

    def build(x: Any) -> Any:
        return later_lab.mb.matmul(x=x, y=later_lab.mb.constexpr_blockwise_shift_scale(**weight.arguments))

    (result,) = later_lab.run(build, {"x": x}, "matmul")
    np.testing.assert_allclose(result, x @ weight.dense, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize(
    ("dtype", "scales"), [("int8", (1, 16, 1)), ("int4", (4, 16, 1)), ("int4", (1, 16, 1))]
)
@pytest.mark.parametrize("channels", [32, 8192], ids=["small", "large"])
def test_transposed_convolution_with_a_weight_in_blocks(
    later_lab: Any, rng: np.random.Generator, dtype: str, scales: tuple[int, int, int], channels: int
) -> None:
    torch = pytest.importorskip("torch")
    weight = Weight(rng, dtype, (channels, 16, 8), scales, offset=False)
    x = rng.standard_normal((1, channels, 5), np.float32)

    def build(x: Any) -> Any:
        kernel = later_lab.mb.constexpr_blockwise_shift_scale(**weight.arguments)
        return later_lab.mb.conv_transpose(x=x, weight=kernel, strides=[4], pad_type="custom", pad=[4, 4])

    (result,) = later_lab.run(build, {"x": x}, "conv_transpose")
    expected = torch.nn.functional.conv_transpose1d(
        torch.from_numpy(x), torch.from_numpy(weight.dense), stride=4, padding=4
    ).numpy()
    assert relative_error(result, expected) < ACTIVATION_NOISE
    kept = dtype == "int8" and channels == 8192
    assert (b"MatMulIntegerToFloat" in nodes(later_lab)) == kept
    if not kept:
        np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-2 * channels**0.5)


def test_convolution_with_a_4_bit_weight(later_lab: Any, rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    weight, x = (
        Weight(rng, "int4", (12, 32, 3), (12, 2, 1), offset=True),
        rng.standard_normal((1, 32, 20), np.float32),
    )

    def build(x: Any) -> Any:
        return later_lab.mb.conv(x=x, weight=later_lab.mb.constexpr_blockwise_shift_scale(**weight.arguments))

    (result,) = later_lab.run(build, {"x": x}, "conv")
    expected = torch.nn.functional.conv1d(torch.from_numpy(x), torch.from_numpy(weight.dense))
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-2)


def test_weights_of_half_bytes_are_read_from_the_package(
    later_lab: Any, rng: np.random.Generator, private_cache: Any
) -> None:
    weight, x = Weight(rng, "int4", (256, 1024), (256, 32), True), rng.standard_normal((1, 1024), np.float32)
    assert relative_error(linear(later_lab, weight, x), x @ weight.dense.T) < ACTIVATION_NOISE
    assert sum(file.stat().st_size for file in private_cache.iterdir()) < 256 * 1024 / 2 / 8


def test_a_weight_that_is_no_integer_is_refused_by_name(later_lab: Any) -> None:
    def build(x: Any) -> Any:
        arguments = {"data": np.ones((8, 16), np.float16), "scale": np.ones((8, 1), np.float32)}
        return later_lab.mb.linear(
            x=x, weight=later_lab.mb.constexpr_blockwise_shift_scale(**arguments, name="coarse")
        )

    with pytest.raises(
        PackageError, match=r"constexpr_blockwise_shift_scale \(coarse\): a weight of type FLOAT16"
    ):
        later_lab.run(build, {"x": np.zeros((1, 16), np.float32)}, "constexpr_blockwise_shift_scale")
