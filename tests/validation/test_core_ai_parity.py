import numpy as np
import pytest

from core_ai_agreement import TEXT, check_utterances, recorded
from voxcpm_constants.manifest import Manifest
from voxcpm_constants.step_models import STEP_MODEL_NAMES
from voxcpm_runtime.voxcpm import VoxCPM
from voxcpm_validation import validate
from voxcpm_validation.end_to_end import EndToEnd
from voxcpm_validation.measures import agreement
from voxcpm_validation.report import below_floors

pytest.importorskip("coreai_torch", exc_type=ImportError)
pytestmark = pytest.mark.usefixtures("shared_compiled_27")


def test_fp16_speech_has_its_own_floors_on_core_ai():
    equal = agreement(np.arange(4.0), np.arange(4.0))
    speech = EndToEnd(
        case="zero-shot", precision="fp16", patches=4, upstream_patches=4, free_running_latents=equal,
        waveform=equal, teacher_forced_worst=0.9985, teacher_forced_median=0.9998,
    )  # fmt: skip
    assert not below_floors(speech, core_ai=True)
    assert len(below_floors(speech)) == 2
    wrong = speech.model_copy(update={"teacher_forced_worst": 0.998, "teacher_forced_median": 0.9996})
    assert len(below_floors(wrong, core_ai=True)) == 2


@pytest.mark.parametrize(
    ("generation", "modes"), [("tiny", 2), pytest.param("second", 6, marks=pytest.mark.slow)]
)
def test_fp32_utterances_equal_upstream_and_the_portable_backend(request, generation, modes):
    checkpoint, *bundles = (
        request.getfixturevalue(f"{generation}_{kind}") for kind in ("checkpoint", "bundle_27", "bundle")
    )
    core_ai, portable = (VoxCPM.from_bundle(bundle, "fp32") for bundle in bundles)
    assert len(check_utterances(recorded(checkpoint, bundles[0])[0], core_ai, portable)) == modes


def test_validation_on_core_ai_reports_skipped_measurements(tiny_bundle_27, tiny_checkpoint, monkeypatch):
    """With fp16 arithmetic fewer patches are compared; here fewer still."""
    monkeypatch.setattr(validate, "FEW_PATCHES", 2)
    report = validate.validate_bundle(
        tiny_bundle_27, str(tiny_checkpoint), precisions=["fp16", "fp32"], text=TEXT, patches=3
    )
    assert {(s.step_model, s.precision, s.arithmetic) for s in report.steps} == {
        (name, precision, "core-ai") for name in STEP_MODEL_NAMES for precision in ("fp16", "fp32")
    }
    assert {(s.case, s.precision, s.patches) for s in report.end_to_end} == {
        (case, *what) for case in ("zero-shot", "continuation") for what in (("fp16", 2), ("fp32", 3))
    }
    assert [line for line in report.failures() if "core-ai" in line or "fp32" in line] == []
    declared = Manifest.read(tiny_bundle_27).step_models
    assert all(set(step.lengths) == set(declared[step.step_model].chunk_lengths) for step in report.steps)
    # fp16 arithmetic, not float32 with fp16 weights.
    halves = [step for step in report.steps if step.precision == "fp16"]
    assert all(output.snr_db < 70 for step in halves for output in step.outputs.values())
    assert report.tools.keys() == {"voxcpm", "torch", "coreai-core", "numpy"}
    markdown = report.markdown()
    assert "| base_lm_step | fp32 | core-ai | 16 |" in markdown
    assert "fp16: utterances and step models' calls of 2 patches instead of 3" in markdown
