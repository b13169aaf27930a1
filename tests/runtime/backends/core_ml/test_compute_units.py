import pytest

from voxcpm_constants import step_models as names
from voxcpm_runtime.backends.core_ml.compute_units import DEFAULT_UNITS, chosen_units, read_compute_units

NAMES = (names.AUDIO_VAE_DECODER, names.BASE_LM_STEP, names.LOCDIT_STEP)


def test_every_step_model_has_a_default_unit():
    assert set(DEFAULT_UNITS) == {*names.STEP_MODEL_NAMES, names.LOCDIT_SOLVE}


def test_measured_unit_overrides_the_default_and_an_explicit_one_both():
    measured = {
        names.LOCDIT_STEP: "cpu_and_gpu",
        names.BASE_LM_STEP: "cpu",
        "a model of another bundle": "cpu",
    }
    assert chosen_units("auto", NAMES, measured)[names.LOCDIT_STEP] == "cpu_and_gpu"
    assert chosen_units({names.LOCDIT_STEP: "all"}, NAMES, measured) == {
        names.AUDIO_VAE_DECODER: "cpu",
        names.BASE_LM_STEP: "cpu",
        names.LOCDIT_STEP: "all",
    }
    assert set(chosen_units("all", NAMES, measured).values()) == {"all"}
    assert chosen_units({"*": "all", names.LOCDIT_STEP: "auto"}, NAMES) == {
        names.AUDIO_VAE_DECODER: "all",
        names.BASE_LM_STEP: "all",
        names.LOCDIT_STEP: "cpu_and_ne",
    }


def test_command_options():
    assert read_compute_units([]) == "auto"
    assert read_compute_units(["cpu", "locdit_step=all"]) == {"*": "cpu", names.LOCDIT_STEP: "all"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["gpu"], "compute units must be one of auto, all, cpu, cpu_and_gpu, cpu_and_ne, got 'gpu'"),
        (["locdit_step="], "cpu_and_ne, got ''"),
        (["decoder=cpu"], "unknown step model 'decoder' for compute units: expected one of "),
        (["cpu", "all"], "given twice: cpu and all"),
    ],
)
def test_invalid_units_fail_before_opening(refusal, given, message):
    options = [part for word in given for part in ("--compute-units", word)]
    assert message in refusal("generate", "missing", "--text", "hello", "-o", "out.wav", *options)
