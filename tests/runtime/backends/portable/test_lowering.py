import numpy as np
import pytest

from voxcpm_runtime.backends.portable import PROBE_OUTPUT, PackageError, PortableStepModel


def test_unknown_operations_and_invalid_packages_are_named(lab, tmp_path):
    package = lab.package(lambda x: lab.mb.atan(x=x, name="angle"), {"x": np.zeros(3, np.float32)})
    for path, message in (
        (package, r"atan \(angle\)"),
        (tmp_path / "nothing", "nothing is not an .mlpackage"),
    ):
        with pytest.raises(PackageError, match=message):
            PortableStepModel(path)
    weight = np.ones((8, 16), np.float32)
    package = lab.package(
        lambda x: lab.mb.linear(x=x, weight=weight), {"x": np.zeros((1, 16), np.float32)}, "b"
    )
    for name, content in (("weight.bin", b"\0" * 200), ("model.mlmodel", b"\xff" * 40)):
        next(package.rglob(name)).write_bytes(content)
        with pytest.raises(PackageError, match=f"{name} is damaged"):
            PortableStepModel(package)


@pytest.mark.parametrize("mode", ["plain", "faithful"])
def test_only_faithful_mode_rounds_inputs_and_results_of_fp16_and_nothing_of_fp32(lab, mode):
    """In fp16, 1 + 2^-12 is 1, and 300² overflows."""

    def build(x, y, third):
        near_one = lab.mb.add(x=x, y=np.float16(2**-12))
        huge = lab.mb.mul(x=lab.mb.mul(x=x, y=np.float16(300)), y=np.float16(300))
        difference, half = lab.mb.sub(x=near_one, y=np.float16(1)), lab.mb.mul(x=huge, y=np.float16(0.5))
        return difference, half, lab.mb.abs(x=third), lab.mb.add(x=y, y=np.float32(2**-20))

    types = {"x": ("float16", (2,)), "y": ("float32", (2,)), "third": ("float16", (2,))}
    model = PortableStepModel(lab.package(build, types), threads=1, mode=mode)
    ones, third = np.ones(2, np.float32), np.full(2, 1 / 3, np.float32)
    difference, half, rounded, exact = model({"x": ones, "y": ones, "third": third}).values()
    np.testing.assert_array_equal(difference, {"plain": 2**-12, "faithful": 0}[mode])
    np.testing.assert_array_equal(half, {"plain": 45000, "faithful": np.inf}[mode])
    np.testing.assert_array_equal(rounded, third if mode == "plain" else third.astype(np.float16))
    np.testing.assert_array_equal(exact, np.float32(1 + 2**-20))


@pytest.mark.parametrize("mode", ["plain", "faithful"])
def test_the_probe_reports_the_largest_value_of_each_operation(lab, mode):
    def build(x):
        scaled = lab.mb.mul(x=x, y=np.float16(-300), name="scaled")
        moved = lab.mb.reshape(x=scaled, shape=[2, 1])
        return lab.mb.mul(x=moved, y=np.float16(300), name="overflowing")

    package = lab.package(build, {"x": ("float16", (2,))})
    model = PortableStepModel(package, threads=1, mode=mode, probe=True)
    outputs = model({"x": np.array([0.5, 1], np.float32)})
    reported = dict(zip(model.lowered.probed, outputs[PROBE_OUTPUT], strict=True))
    assert reported == {"scaled": 300, "overflowing": 90000}


def test_fp16_weights_are_read_from_the_package(lab, rng, private_cache):
    weight = rng.standard_normal((256, 200)).astype(np.float16)
    x = rng.standard_normal((3, 200)).astype(np.float16)
    (result,) = lab.run(lambda x: lab.mb.linear(x=x, weight=weight), {"x": x}, "linear")
    np.testing.assert_allclose(
        result, x.astype(np.float32) @ weight.astype(np.float32).T, rtol=1e-4, atol=1e-4
    )
    assert sum(file.stat().st_size for file in private_cache.rglob("*.lowered")) < weight.nbytes / 8
