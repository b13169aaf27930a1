"""Matrix products and convolutions in float32 against numpy and torch."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(5, 16), (2, 3, 16)])
def test_linear(lab, rng, shape, bias):
    x, weight, offset = normal(rng, *shape), normal(rng, 24, 16), normal(rng, 24)
    extra = {"bias": offset} if bias else {}
    (result,) = lab.run(lambda x: lab.mb.linear(x=x, weight=weight, **extra), {"x": x}, "linear")
    np.testing.assert_allclose(result, x @ weight.T + (offset if bias else 0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("transpose_x", "transpose_y"), [(False, False), (True, False), (False, True)])
def test_matmul(lab, rng, transpose_x, transpose_y):
    x, y = normal(rng, 2, 3, 5, 4), normal(rng, 1, 3, 4, 6)
    inputs = {
        "x": x.swapaxes(-1, -2).copy() if transpose_x else x,
        "y": y.swapaxes(-1, -2).copy() if transpose_y else y,
    }

    def build(x, y):
        return lab.mb.matmul(x=x, y=y, transpose_x=transpose_x, transpose_y=transpose_y)

    (result,) = lab.run(build, inputs, "matmul")
    np.testing.assert_allclose(result, x @ y, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"pad_type": "custom", "pad": [2, 1]},
        {"pad_type": "custom", "pad": [6, 0], "dilations": [3], "groups": 2, "strides": [2]},
    ],
    ids=str,
)
def test_conv(lab, rng, options):
    groups = options.get("groups", 1)
    x, weight, bias = normal(rng, 2, 4, 20), normal(rng, 8, 4 // groups, 3), normal(rng, 8)
    (result,) = lab.run(lambda x: lab.mb.conv(x=x, weight=weight, bias=bias, **options), {"x": x}, "conv")
    padded = torch.nn.functional.pad(torch.from_numpy(x), options.get("pad", [0, 0]))
    expected = torch.nn.functional.conv1d(
        padded, torch.from_numpy(weight), torch.from_numpy(bias),
        stride=options.get("strides", [1]), dilation=options.get("dilations", [1]), groups=groups,
    )  # fmt: skip
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {"strides": [2], "groups": 2},
        {"strides": [2], "pad_type": "custom", "pad": [1, 2]},
        {"strides": [3], "pad_type": "custom", "pad": [1, 1], "output_shape": [2, 8, 32]},
    ],
    ids=str,
)
def test_conv_transpose(lab, rng, options):
    groups, stride = options.get("groups", 1), options.get("strides", [1])
    x, weight, bias = normal(rng, 2, 4, 10), normal(rng, 4, 8 // groups, 2 * stride[0]), normal(rng, 8)
    (result,) = lab.run(
        lambda x: lab.mb.conv_transpose(x=x, weight=weight, bias=bias, **options), {"x": x}, "conv_transpose"
    )
    full = torch.nn.functional.conv_transpose1d(
        torch.from_numpy(x), torch.from_numpy(weight), stride=stride, groups=groups, output_padding=0,
    )  # fmt: skip
    before, after = options.get("pad", [0, 0])
    length = options.get("output_shape", [0, 0, full.shape[-1] - before - after])[2]
    expected = full[..., before : before + length] + torch.from_numpy(bias)[:, None]
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
