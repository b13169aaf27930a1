"""Core ML states and packages with several functions."""

from typing import Any

import numpy as np
import pytest

from voxcpm_runtime.backends.portable import PortableStepModel

POSITIONS = 6


def _cache_program(ct: Any, rows: int) -> Any:
    """A function that writes `rows` rows of x to a cache at `position`; y is the cache's sum before, z after that."""
    from coremltools.converters.mil import Builder
    from coremltools.converters.mil.mil import types

    @Builder.program(
        input_specs=[
            Builder.TensorSpec((rows, 4), dtype=types.fp16),
            Builder.TensorSpec((1,), dtype=types.int32),
            Builder.StateTensorSpec((POSITIONS, 4), dtype=types.fp16),
        ],
        opset_version=ct.target.macOS15,
    )
    def program(x, position, cache):
        before = Builder.reduce_sum(x=Builder.read_state(input=cache), axes=[0])
        positions = Builder.add(x=position, y=np.arange(rows, dtype=np.int32))
        written = Builder.scatter(
            data=Builder.read_state(input=cache), indices=positions, updates=x, axis=0, mode="update"
        )
        after = Builder.coreml_update_state(state=cache, value=written)
        scaled = Builder.linear(x=after, weight=(np.eye(4) * 3).astype(np.float16))
        return Builder.identity(x=before, name="y"), Builder.identity(x=scaled, name="z")

    return ct.convert(program, minimum_deployment_target=ct.target.macOS15, skip_model_load=True)


@pytest.fixture(scope="module")
def package(ct, tmp_path_factory):
    folder = tmp_path_factory.mktemp("functions")
    descriptor = ct.utils.MultiFunctionDescriptor()
    for name, rows in (("decode", 1), ("prefill_2", 2)):
        _cache_program(ct, rows).save(str(folder / f"{name}.mlpackage"))
        descriptor.add_function(str(folder / f"{name}.mlpackage"), "main", name)
    descriptor.default_function_name = "decode"
    ct.utils.save_multifunction(descriptor, str(folder / "both.mlpackage"))
    return folder / "both.mlpackage"


@pytest.mark.parametrize("mode", ["plain", "faithful"])
def test_functions_share_a_state_that_each_reads_and_writes(package, mode):
    decode, prefill = (
        PortableStepModel(package, function=name, state={"cache": "cache_out"}, threads=1, mode=mode)
        for name in ("decode", "prefill_2")
    )
    state = decode.new_state()
    expected = np.zeros((POSITIONS, 4), np.float32)
    for model, value, rows in ((prefill, 5.0, [0, 1]), (decode, 7.0, [2]), (prefill, 1.0, [1, 2])):
        x, position = np.full((len(rows), 4), value, np.float32), np.array(rows[:1], np.int32)
        result = model({"x": x, "position": position}, state)
        np.testing.assert_array_equal(result["y"], expected.sum(axis=0))
        expected[rows] = value
        np.testing.assert_array_equal(result["z"], 3 * expected)
