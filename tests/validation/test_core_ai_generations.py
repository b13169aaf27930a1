"""VoxCPM2's and 0.5B's structure and the built-in voice on Apple's Core AI runtime, against upstream."""

import pytest

from core_ai_agreement import check_fp32, check_utterances, recorded
from voxcpm_constants.step_models import STEP_MODEL_NAMES, StepSizes
from voxcpm_conversion.checkpoint import Checkpoint
from voxcpm_conversion.convert import convert
from voxcpm_conversion.default_bundle import DEFAULT_CHECKPOINT
from voxcpm_runtime.voxcpm import VoxCPM
from voxcpm_validation.upstream import load_upstream
from voxcpm_validation.validate import validate_bundle

pytest.importorskip("coreai_torch", exc_type=ImportError)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("VOXCPM_COREML_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def second(second_checkpoint, second_bundle_27):
    return recorded(second_checkpoint, second_bundle_27)


@pytest.mark.parametrize("name", STEP_MODEL_NAMES)
def test_step_models_of_the_second_generation_equal_upstream_at_every_length(second_bundle_27, second, name):
    check_fp32(second_bundle_27, second[1], name)


def test_utterances_of_the_second_generation_in_every_mode(second, second_bundle_27, second_bundle):
    modes = check_utterances(
        second[0], VoxCPM.from_bundle(second_bundle_27, "fp32"), VoxCPM.from_bundle(second_bundle, "fp32")
    )
    assert len(modes) == 6


@pytest.fixture(scope="module")
def built_in_voice(tmp_path_factory):
    folder = tmp_path_factory.mktemp("built-in") / "bundle"
    opened = Checkpoint.open(str(DEFAULT_CHECKPOINT))
    convert(opened, folder, precisions=("fp16", "fp32"), sizes=StepSizes(), target="macOS27")
    return folder


def test_fp16_meets_the_floors_of_the_linux_runtime(built_in_voice):
    """Every step model at every length, with the text and seed that `validate` takes."""
    report = validate_bundle(built_in_voice, str(DEFAULT_CHECKPOINT), precisions=["fp16"])
    assert report.failures() == []


def test_fp32_utterances_equal_upstream_and_the_portable_backend(built_in_voice, speaking_bundle):
    model = load_upstream(DEFAULT_CHECKPOINT, max_length=StepSizes().kv_length)
    opened = (VoxCPM.from_bundle(folder, "fp32") for folder in (built_in_voice, speaking_bundle))
    modes = check_utterances(model, *opened, text="the river runs slowly to the sea.")
    assert modes == ["zero-shot", "continuation"]
