"""Precision modes, 8-bit weights, the probe, and programs that cannot be lowered."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from voxcpm_runtime.backends.portable import PROBE_OUTPUT, PackageError, PortableStepModel
from voxcpm_runtime.backends.portable.cache import load_lowered

INT8_NOISE = 0.015  # relative error of unit-variance activations in 8 bits, and a margin


def quantized(model: Any) -> Any:
    """The model with int8 weights, quantised in the conversion's way."""
    import coremltools.optimize.coreml as cto

    settings = cto.OpLinearQuantizerConfig(mode="linear_symmetric", weight_threshold=512)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return cto.linear_quantize_weights(model, config=cto.OptimizationConfig(global_config=settings))


def int8_rows(weight: np.ndarray) -> np.ndarray:
    """Symmetric 8-bit rounding of each row, by its definition."""
    scale = np.abs(weight).max(1, keepdims=True) / 127
    return np.round(weight / scale) * scale


def relative_error(result: np.ndarray, expected: np.ndarray) -> float:
    return float(np.sqrt(np.mean((result - expected) ** 2) / np.mean(expected**2)))


def test_unknown_operations_are_refused_by_name(lab: Any) -> None:
    package = lab.package(lambda x: lab.mb.atan(x=x, name="angle"), {"x": np.zeros(3, np.float32)})
    with pytest.raises(PackageError, match=r"atan \(angle\)"):
        PortableStepModel(package)


def test_a_folder_that_is_no_package_is_named(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match=r"nothing is not an .mlpackage"):
        PortableStepModel(tmp_path / "nothing")


def test_a_damaged_program_is_named(lab: Any) -> None:
    package = lab.package(lambda x: lab.mb.abs(x=x), {"x": np.zeros(3, np.float32)})
    program = next(package.rglob("model.mlmodel"))
    program.write_bytes(b"\xff" * 40)
    with pytest.raises(PackageError, match=r"model.mlmodel is damaged"):
        PortableStepModel(package)


def test_truncated_weights_are_named(lab: Any, rng: np.random.Generator) -> None:
    weight = rng.standard_normal((8, 16)).astype(np.float32)
    package = lab.package(lambda x: lab.mb.linear(x=x, weight=weight), {"x": np.zeros((1, 16), np.float32)})
    weights = next(package.rglob("weight.bin"))
    weights.write_bytes(weights.read_bytes()[:200])
    with pytest.raises(PackageError, match=r"weight.bin is damaged"):
        PortableStepModel(package)


@pytest.mark.parametrize("mode", ["plain", "faithful"])
def test_only_faithful_mode_rounds_to_fp16(lab: Any, mode: str) -> None:
    """In fp16, 1 + 2^-12 is 1, and 300² overflows."""

    def build(x: Any) -> tuple[Any, Any]:
        near_one = lab.mb.add(x=x, y=np.float16(2**-12))
        huge = lab.mb.mul(x=lab.mb.mul(x=x, y=np.float16(300)), y=np.float16(300))
        return lab.mb.sub(x=near_one, y=np.float16(1)), lab.mb.mul(x=huge, y=np.float16(0.5))

    x = np.ones(2, np.float16)
    difference, half = lab.run(build, {"x": x}, "add", mode=mode)
    np.testing.assert_array_equal(difference, {"plain": 2**-12, "faithful": 0}[mode])
    np.testing.assert_array_equal(half, {"plain": 45000, "faithful": np.inf}[mode])


def test_faithful_mode_rounds_inputs_and_leaves_fp32_operations_alone(lab: Any) -> None:
    def build(x: Any, y: Any) -> tuple[Any, Any]:
        return lab.mb.abs(x=x), lab.mb.add(x=y, y=np.float32(2**-20))

    third = np.full(2, 1 / 3, np.float32)
    types = {"x": ("float16", (2,)), "y": ("float32", (2,))}
    model = PortableStepModel(lab.package(build, types), threads=1, mode="faithful")
    rounded, exact = model({"x": third, "y": np.ones(2, np.float32)}).values()
    np.testing.assert_array_equal(rounded, np.float32(np.float16(1 / 3)))
    np.testing.assert_array_equal(exact, np.float32(1 + 2**-20))


def test_faithful_mode_rounds_after_every_operation(lab: Any, rng: np.random.Generator) -> None:
    """A chain that optimisers might fuse, compared with numpy's fp16 arithmetic."""
    x = rng.standard_normal(500).astype(np.float16)
    weight = rng.standard_normal(500).astype(np.float16)

    def build(x: Any) -> Any:
        for _ in range(4):
            x = lab.mb.add(x=lab.mb.mul(x=x, y=weight), y=np.float16(0.1))
            x = lab.mb.tanh(x=x)
        return x

    expected = x
    for _ in range(4):
        expected = expected * weight + np.float16(0.1)
        expected = np.tanh(expected.astype(np.float32)).astype(np.float16)
    (result,) = lab.run(build, {"x": x}, "mul", mode="faithful")
    # Results may differ by one unit in the last place if float32's tanh is close to a rounding boundary.
    np.testing.assert_allclose(result, expected.astype(np.float32), rtol=1e-3, atol=0)
    assert np.mean(result == expected) > 0.98


@pytest.mark.parametrize("mode", ["plain", "faithful"])
def test_the_probe_reports_the_largest_value_of_each_operation(lab: Any, mode: str) -> None:
    def build(x: Any) -> Any:
        scaled = lab.mb.mul(x=x, y=np.float16(-300), name="scaled")
        moved = lab.mb.reshape(x=scaled, shape=[2, 1])
        return lab.mb.mul(x=moved, y=np.float16(300), name="overflowing")

    package = lab.package(build, {"x": ("float16", (2,))})
    model = PortableStepModel(package, threads=1, mode=mode, probe=True)
    outputs = model({"x": np.array([0.5, 1], np.float32)})
    reported = dict(zip(model.probed, outputs[PROBE_OUTPUT], strict=True))
    assert reported == {"scaled": 300, "overflowing": 90000}


@pytest.mark.parametrize(
    ("processor", "rows", "product"),
    [
        ("saturating", 1, b"MatMulNBits"),
        ("saturating", 5, b"MatMulIntegerToFloat"),
        ("exact", 1, b"MatMulIntegerToFloat"),
        ("exact", 5, b"MatMulIntegerToFloat"),
    ],
    indirect=["processor"],
)
@pytest.mark.usefixtures("processor")
def test_int8_linear_stays_8_bit_in_plain_mode(
    lab: Any, rng: np.random.Generator, rows: int, product: bytes
) -> None:
    weight, bias = (
        rng.standard_normal((64, 96)).astype(np.float32),
        rng.standard_normal(64).astype(np.float32),
    )
    # Rows of different magnitude: with one scale for all, the small ones would be lost.
    x = (rng.standard_normal((1, rows, 96)) * np.logspace(-3, 1, rows)[:, None]).astype(np.float32)
    model = lab.convert(lambda x: lab.mb.linear(x=x, weight=weight, bias=bias), {"x": x})
    package = lab.save(quantized(model))
    expected = x @ int8_rows(weight).T + bias
    (plain,) = PortableStepModel(package, threads=1)({"x": x}).values()
    for row in range(rows):
        assert relative_error(plain[0, row] - bias, expected[0, row] - bias) < INT8_NOISE
    assert product in load_lowered(package).model
    (faithful,) = PortableStepModel(package, threads=1, mode="faithful")({"x": x}).values()
    np.testing.assert_allclose(faithful, expected, rtol=1e-3, atol=1e-3)
    assert product not in load_lowered(package, mode="faithful").model


WIDE, NARROW = (96, 64), (64, 96)
# rows, (out, in), whether rows keep more than a byte
PLANES = [(1, WIDE, True), (3, WIDE, True), (5, WIDE, False), (5, NARROW, True), (1, NARROW, True)]


@pytest.mark.parametrize("processor", ["exact"], indirect=True)
@pytest.mark.parametrize(("rows", "shape", "fine"), PLANES)
@pytest.mark.parametrize("open_length", [False, True])
@pytest.mark.usefixtures("processor")
def test_few_rows_and_products_that_narrow_keep_what_a_byte_rounds_off(
    lab: Any, rng: np.random.Generator, rows: int, shape: tuple[int, int], fine: bool, open_length: bool
) -> None:
    """A second plane of bytes: the error falls from about 1 % to 1e-4."""
    torch = pytest.importorskip("torch")
    layer = torch.nn.Linear(shape[1], shape[0], bias=False)
    x = rng.standard_normal((1, rows, shape[1])).astype(np.float32)
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
    assert error < 2e-4 if fine else 2e-3 < error < INT8_NOISE


def test_int8_products_do_not_saturate(lab: Any) -> None:
    weight, x = np.full((64, 96), 0.7, np.float32), np.full((1, 8, 96), 3.0, np.float32)
    package = lab.save(quantized(lab.convert(lambda x: lab.mb.linear(x=x, weight=weight), {"x": x})))
    (result,) = PortableStepModel(package, threads=1)({"x": x}).values()
    np.testing.assert_allclose(result, np.full((1, 8, 64), 0.7 * 3 * 96), rtol=1e-2)


def test_int8_product_with_a_row_of_zeros(lab: Any, rng: np.random.Generator) -> None:
    weight = rng.standard_normal((64, 96)).astype(np.float32)
    x = rng.standard_normal((1, 5, 96)).astype(np.float32)
    x[:, 2] = 0
    package = lab.save(quantized(lab.convert(lambda x: lab.mb.linear(x=x, weight=weight), {"x": x})))
    (result,) = PortableStepModel(package, threads=1)({"x": x}).values()
    np.testing.assert_array_equal(result[:, 2], 0)


@pytest.mark.parametrize("others", [-1.0, 1e4, np.inf, np.nan])
@pytest.mark.parametrize("dtype", ["int8", "float32"])
@pytest.mark.parametrize("rows", [2, 5, 18])
def test_a_row_of_a_product_does_not_depend_on_the_others(
    lab: Any, rng: np.random.Generator, rows: int, dtype: str, others: float
) -> None:
    """Rows may belong to different utterances. The first row has no negative number, so its range is different."""
    weight = rng.standard_normal((64, 96)).astype(np.float32)
    x = np.abs(rng.standard_normal((rows, 96))).astype(np.float32)
    model = lab.convert(lambda x: lab.mb.linear(x=x, weight=weight), {"x": x})
    run = PortableStepModel(lab.save(quantized(model) if dtype == "int8" else model), threads=1)
    (before,) = run({"x": x}).values()
    x[1:] *= others
    (after,) = run({"x": x}).values()
    np.testing.assert_array_equal(after[0], before[0])
    assert not np.array_equal(after[1], before[1])


@pytest.mark.parametrize(
    ("processor", "rows", "product"),
    [
        ("saturating", (1, 1), b"MatMulNBits"),
        ("saturating", (2, 5), b"MatMulIntegerToFloat"),
        ("exact", (1, 1), b"MatMulIntegerToFloat"),
        ("exact", (2, 5), b"MatMulIntegerToFloat"),
    ],
    indirect=["processor"],
)
@pytest.mark.usefixtures("processor")
def test_int8_matmul_of_an_untransposed_weight(
    lab: Any, rng: np.random.Generator, rows: tuple[int, int], product: bytes
) -> None:
    weight = rng.standard_normal((96, 64)).astype(np.float32)
    x = rng.standard_normal((*rows, 96)).astype(np.float32)
    package = lab.save(quantized(lab.convert(lambda x: lab.mb.matmul(x=x, y=weight), {"x": x})))
    (result,) = PortableStepModel(package, threads=1)({"x": x}).values()
    assert relative_error(result, x @ int8_rows(weight.T).T) < INT8_NOISE
    assert product in load_lowered(package).model


def test_int8_convolution_weights_are_unpacked(lab: Any, rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    weight = rng.standard_normal((32, 16, 3)).astype(np.float32)
    x = rng.standard_normal((1, 16, 20)).astype(np.float32)
    package = lab.save(quantized(lab.convert(lambda x: lab.mb.conv(x=x, weight=weight), {"x": x})))
    (result,) = PortableStepModel(package, threads=1)({"x": x}).values()
    rounded = int8_rows(weight.reshape(32, -1)).reshape(weight.shape).astype(np.float32)
    expected = torch.nn.functional.conv1d(torch.from_numpy(x), torch.from_numpy(rounded))
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(512, 256, 8), (32, 16, 8)], ids=["large", "small"])
@pytest.mark.parametrize("bias", [False, True])
def test_int8_transposed_convolution(
    lab: Any, rng: np.random.Generator, shape: tuple[int, int, int], bias: bool
) -> None:
    """Large weights stay 8-bit and small ones are unpacked; the results are the same."""
    torch = pytest.importorskip("torch")
    weight = rng.standard_normal(shape).astype(np.float32)
    x = rng.standard_normal((1, shape[0], 5)).astype(np.float32)
    offset = 30 * rng.standard_normal(shape[1]).astype(np.float32)
    options = {"strides": [4], "pad_type": "custom", "pad": [4, 4], **({"bias": offset} if bias else {})}

    def build(x: Any) -> Any:
        return lab.mb.conv_transpose(x=x, weight=weight, **options)

    package = lab.save(quantized(lab.convert(build, {"x": x})))
    (result,) = PortableStepModel(package, threads=1)({"x": x}).values()

    by_output = weight.transpose(1, 0, 2)
    rounded = int8_rows(by_output.reshape(shape[1], -1)).reshape(by_output.shape).transpose(1, 0, 2)
    expected = torch.nn.functional.conv_transpose1d(
        torch.from_numpy(x), torch.from_numpy(rounded.astype(np.float32)),
        torch.from_numpy(offset) if bias else None, stride=4, padding=4,
    ).numpy()  # fmt: skip
    assert relative_error(result, expected) < INT8_NOISE
    assert (b"MatMulIntegerToFloat" in load_lowered(package).model) == (shape[0] == 512)


def test_fp16_weights_are_read_from_the_package(
    lab: Any, rng: np.random.Generator, private_cache: Path
) -> None:
    weight = rng.standard_normal((256, 200)).astype(np.float16)
    x = rng.standard_normal((3, 200)).astype(np.float16)
    (result,) = lab.run(lambda x: lab.mb.linear(x=x, weight=weight), {"x": x}, "linear")
    np.testing.assert_allclose(
        result, x.astype(np.float32) @ weight.astype(np.float32).T, rtol=1e-4, atol=1e-4
    )
    assert sum(file.stat().st_size for file in private_cache.iterdir()) < weight.nbytes / 8
