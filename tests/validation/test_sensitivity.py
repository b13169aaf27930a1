"""Free runs are judged by upstream's own drift; defects of the loop are detected regardless."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from voxcpm_constants.step_models import BASE_LM_STEP, LOCDIT_STEP
from voxcpm_conversion.default_bundle import DEFAULT_CHECKPOINT
from voxcpm_runtime.voxcpm import VoxCPM
from voxcpm_validation.end_to_end import Case, EndToEnd, SpokenCase, compare_speech, speak_upstream
from voxcpm_validation.measures import Agreement
from voxcpm_validation.report import ValidationReport
from voxcpm_validation.sensitivity import Sensitivity, measure_sensitivity
from voxcpm_validation.upstream import load_upstream

TEXTS = ("the river runs slowly to the sea.", "we walked home in the rain.")


@dataclass(frozen=True)
class Judged:
    """A model whose bundles are compared with upstream and judged by upstream's drift."""

    bundle: Path
    cases: list[Case]
    expected: list[SpokenCase]
    sensitivity: tuple[Sensitivity, ...]

    def failures(self, precision: str, defect: Callable[[VoxCPM], None] = lambda tts: None) -> list[str]:
        tts = VoxCPM.from_bundle(self.bundle, precision=precision)
        defect(tts)
        spoken = [compare_speech(tts, *pair) for pair in zip(self.cases, self.expected, strict=True)]
        return report_of(*spoken, drift=self.sensitivity, built_in=True).failures()


@pytest.fixture(scope="module")
def built_in_voice(speaking_bundle):
    model = load_upstream(DEFAULT_CHECKPOINT, max_length=128)
    cases = [Case(f"zero-shot {seed}", text, seed, patches=6) for seed, text in enumerate(TEXTS)]
    expected = [speak_upstream(model, case) for case in cases]
    pairs = zip(cases, expected, strict=True)
    measured = tuple(measure_sensitivity(model, "fp16", *pair) for pair in pairs)
    return Judged(speaking_bundle, cases, expected, measured)


class Changed:
    """A step model whose inputs are changed before each call."""

    def __init__(self, model: Any, change: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> None:
        self._model, self._change = model, change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, inputs: Mapping[str, Any], state: Any = None) -> Any:
        return self._model(self._change(inputs), state)


def one_percent_more_condition(tts: VoxCPM) -> None:
    models = tts.driver.models
    models[LOCDIT_STEP] = Changed(models[LOCDIT_STEP], lambda i: {**i, "mu": i["mu"] * np.float32(1.01)})


def rows_one_position_late(tts: VoxCPM) -> None:
    def shifted(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        late = inputs["embeddings"].shape[1] == 1
        return {**inputs, "position": inputs["position"] + np.int32(late)}

    models = tts.driver.models
    models[BASE_LM_STEP] = Changed(models[BASE_LM_STEP], shifted)


@pytest.mark.long
@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_default_bundle_meets_every_floor(built_in_voice, precision):
    assert built_in_voice.failures(precision) == []


@pytest.mark.long
@pytest.mark.parametrize("defect", [one_percent_more_condition, rows_one_position_late])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_loop_defect_is_detected_in_forced_patches(built_in_voice, precision, defect):
    failures = built_in_voice.failures(precision, defect)
    assert any("teacher-forced, median patch" in line for line in failures), failures


def sensitivity(case: str, *, free: float = 1.0, worst: float = 1.0, median: float = 1.0) -> Sensitivity:
    figures = {"free_running": free, "forced_worst": worst, "forced_median": median}
    return Sensitivity(case=case, precision="fp16", disturbance=0.005, **figures)


def spoken(
    case: str, *, free: float = 1.0, worst: float = 1.0, median: float = 1.0, precision: Any = "fp16"
) -> EndToEnd:
    same = Agreement(correlation=free, max_abs_error=0.0, snr_db=100.0, finite=True)
    return EndToEnd(
        case=case, precision=precision, patches=8, upstream_patches=8, free_running_latents=same, waveform=same,
        teacher_forced_worst=worst, teacher_forced_median=median,
    )  # fmt: skip


def report_of(*end_to_end: EndToEnd, drift: Sequence[Sensitivity] = (), **given: Any) -> ValidationReport:
    whole = {"bundle": "b", "checkpoint": "c", "tools": {}, "steps": (), "sensitivity": tuple(drift), **given}
    return ValidationReport(end_to_end=end_to_end, **whole)


def test_floor_is_three_times_upstreams_distance_from_one_and_clamped():
    measured = sensitivity("continuation")
    assert measured.floor(0.99, 0.999) == pytest.approx(0.97)
    assert measured.floor(1.0, 0.999) == 0.999
    assert measured.floor(0.95, 0.999) == measured.floor(-1.0, 0.999) == 0.9


def test_continuation_defect_fails_without_a_usable_free_run():
    good, bad = spoken("zero-shot"), spoken("continuation", free=-0.2, worst=0.1, median=0.2)
    report = report_of(good, bad, drift=[sensitivity("continuation", free=0.46226, worst=0.3, median=0.5)])
    (failure,) = report.failures()
    assert "continuation fp16: teacher-forced, median patch" in failure
    assert len(report.unjudged()) == 2
    assert all("continuation fp16" in line and "cannot be judged" in line for line in report.unjudged())
    assert report.unjudged()[0] in report.markdown()


def test_low_median_passes_only_down_to_that_of_perturbed_upstream():
    fell = sensitivity("continuation", median=0.9997)
    assert report_of(spoken("continuation", median=0.9998), drift=[fell]).failures() == []
    assert report_of(spoken("continuation", median=0.9996), drift=[fell]).failures() != []
    assert report_of(spoken("continuation", median=0.9998), drift=[sensitivity("continuation")]).failures()


def test_int8_median_has_a_floor_for_the_default_bundle_only():
    low = spoken("zero-shot", median=0.9, precision="int8")
    assert report_of(low, built_in=True).failures() != []
    assert report_of(low).failures() == []
    assert report_of(spoken("zero-shot", median=float("nan"))).failures() != []
    # The drift of one case excuses no other.
    bad = spoken("zero-shot", free=0.99, worst=0.99)
    assert len(report_of(bad, drift=[sensitivity("continuation", free=0.95, worst=0.95)]).failures()) == 2
