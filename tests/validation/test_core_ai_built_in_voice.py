"""The built-in voice on Apple's Core AI runtime: the published figures, which are a trained voice's, and its speech."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from core_ai_agreement import FP32, check_utterances
from voxcpm_constants.step_models import StepSizes
from voxcpm_conversion.checkpoint import Checkpoint
from voxcpm_conversion.convert import convert
from voxcpm_conversion.default_bundle import DEFAULT_CHECKPOINT
from voxcpm_runtime.voxcpm import VoxCPM
from voxcpm_validation import validate
from voxcpm_validation.upstream import load_upstream

pytest.importorskip("coreai_torch", exc_type=ImportError)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """For macOS 27, with a cache of its own for what Core AI compiles."""
    folder = tmp_path_factory.mktemp("built-in")
    opened = Checkpoint.open(str(DEFAULT_CHECKPOINT))
    convert(opened, folder / "b", precisions=("fp16", "fp32"), sizes=StepSizes(), target="macOS27")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("VOXCPM_COREML_CACHE", str(folder / "cache"))
        yield folder / "b"


def test_half_arithmetic_and_bytes_reach_the_floors_of_linuxs_runtime(bundle: Path) -> None:
    """Every step model at every length, with the text and seed that `validate` takes."""
    report = validate.validate_bundle(bundle, str(DEFAULT_CHECKPOINT), precisions=["fp16"])
    assert report.failures() == []


def test_fp32_equals_upstream(bundle: Path) -> None:
    report = validate.validate_bundle(bundle, str(DEFAULT_CHECKPOINT), precisions=["fp32"], patches=12)
    assert report.failures() == []
    assert all(step.lowest >= FP32 for step in report.steps)
    assert all(case.free_running_latents.correlation >= 0.99999 for case in report.end_to_end)


def test_utterances_in_fp32_equal_upstreams_and_the_portable_executors(
    bundle: Path, speaking_bundle: Path
) -> None:
    model = load_upstream(DEFAULT_CHECKPOINT, max_length=StepSizes().kv_length)
    opened = (VoxCPM.from_bundle(folder, "fp32") for folder in (bundle, speaking_bundle))
    modes = check_utterances(model, *opened, text="the river runs slowly to the sea.")
    assert modes == ["zero-shot", "continuation"]
