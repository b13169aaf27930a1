"""The same packages on Core ML and on the portable executor. These tests run on a Mac only.

COREML_COMPUTE_UNITS names the compute unit. Those with the Neural Engine are skipped where there is none, as on the
virtual Macs of continuous integration: Core ML would quietly compute elsewhere, and passing would prove nothing.
"""

import os

import numpy as np
import pytest

from voxcpm_constants.macos import macos
from voxcpm_constants.step_models import BASE_LM_STEP, RESIDUAL_LM_STEP, STEP_MODEL_NAMES
from voxcpm_runtime.backends.loading import load_step_models
from voxcpm_runtime.bundle.opening import open_bundle
from voxcpm_runtime.voxcpm import VoxCPM
from voxcpm_validation.measures import agreement

pytestmark = pytest.mark.coreml

UNITS = os.environ.get("COREML_COMPUTE_UNITS", "all")
WITH_NEURAL_ENGINE = ("cpu_and_ne", "all")

# Core ML computes fp16 packages in fp16, the portable executor in float32.
FLOORS = {"fp32": 0.99999, "fp16": 0.999, "int8": 0.99}


def has_neural_engine():
    """Whether Core ML lists a Neural Engine among this machine's devices."""
    from coremltools.models.compute_device import MLComputeDevice

    devices = MLComputeDevice.get_all_compute_devices()
    return any("NeuralEngine" in type(device).__name__ for device in devices)


def skip_unless_covered(unit):
    """Skip the test if it needs a Neural Engine and there is none."""
    if unit in WITH_NEURAL_ENGINE and not has_neural_engine():
        pytest.skip("no Neural Engine here")


@pytest.fixture(autouse=True)
def _covered():
    skip_unless_covered(UNITS)


def _inputs(declared, chunk, generator):
    return {
        tensor.name: np.zeros(tensor.shape_at(chunk), np.int32)
        if tensor.dtype == "int32"
        else generator.standard_normal(tensor.shape_at(chunk), np.float32)
        for tensor in declared.inputs
    }


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
@pytest.mark.parametrize("name", STEP_MODEL_NAMES)
def test_step_model_at_every_chunk_length(tiny_bundle, precision, name):
    _agrees_at_every_chunk_length(tiny_bundle, precision, name)


@pytest.mark.skipif(
    (system := macos()) is None or system.version < (15,), reason="Core ML has states from macOS 15 on"
)
@pytest.mark.parametrize("precision", ["fp16", "int8"])
@pytest.mark.parametrize("name", [BASE_LM_STEP, RESIDUAL_LM_STEP])
def test_functions_and_states_of_macos_15(tiny_bundle_15, precision, name):
    _agrees_at_every_chunk_length(tiny_bundle_15, precision, name)


def _agrees_at_every_chunk_length(folder, precision, name):
    bundle = open_bundle(folder, precision)
    declared = bundle.manifest.step_models[name]
    models = [
        load_step_models(bundle, backend, names=[name], **units)[name]
        for backend, units in (("coreml", {"compute_units": UNITS}), ("portable", {}))
    ]
    generator = np.random.default_rng(0)
    for chunk in range(declared.chunk_count):
        states = [model.new_state() if declared.state else None for model in models]
        for _ in range(2):
            inputs = _inputs(declared, chunk, generator)
            ours, portable = (model(inputs, state) for model, state in zip(models, states, strict=True))
            for output in declared.outputs:
                found = agreement(ours[output.name], portable[output.name])
                assert found.correlation > FLOORS[precision], (chunk, output.name)


def test_speech_on_core_ml(speaking_bundle):
    text = "the river runs slowly to the sea."
    ours, portable = (
        VoxCPM.from_bundle(speaking_bundle, precision="fp16", backend=backend, **units).speak(
            text, seed=1, max_len=12, min_len=12
        )
        for backend, units in (("coreml", {"compute_units": UNITS}), ("portable", {}))
    )
    assert agreement(ours.latents[:2], portable.latents[:2]).correlation > 0.99
