"""Free runs are judged by upstream's own drift; a defect of the loop is found whatever that is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from voxcpm_constants.step_models import BASE_LM_STEP, LOCDIT_STEP
from voxcpm_conversion.default_bundle import DEFAULT_CHECKPOINT
from voxcpm_runtime.voxcpm import VoxCPM
from voxcpm_validation import validate
from voxcpm_validation.end_to_end import Case, Spoken, compare_speech, speak_upstream
from voxcpm_validation.report import Report
from voxcpm_validation.sensitivity import Sensitivity, measure_sensitivity
from voxcpm_validation.upstream import load_upstream

TEXTS = ("the river runs slowly to the sea.", "we walked home in the rain.")


@dataclass(frozen=True)
class Judged:
    """A voice whose bundles are judged beside what upstream says, and by how far it drifts."""

    bundle: Path
    cases: list[Case]
    expected: list[Spoken]
    sensitivity: tuple[Sensitivity, ...]

    def failures(self, precision: str, defect: Callable[[VoxCPM], None] = lambda tts: None) -> list[str]:
        tts = VoxCPM.from_bundle(self.bundle, precision=precision)
        defect(tts)
        spoken = [compare_speech(tts, *pair) for pair in zip(self.cases, self.expected, strict=True)]
        return Report(
            bundle="b",
            checkpoint="c",
            tools={},
            steps=(),
            sensitivity=self.sensitivity,
            end_to_end=tuple(spoken),
        ).failures()


def judged(checkpoint: Path, bundle: Path, texts: tuple[str, ...]) -> Judged:
    model = load_upstream(checkpoint, max_length=128)
    cases = [Case(f"zero-shot {seed}", text, seed, patches=6) for seed, text in enumerate(texts)]
    expected = [speak_upstream(model, case) for case in cases]
    measured = (measure_sensitivity(model, "fp16", cases, expected),)
    return Judged(bundle, cases, expected, measured)


@pytest.fixture(scope="module")
def built_in_voice(speaking_bundle: Path) -> Judged:
    return judged(DEFAULT_CHECKPOINT, speaking_bundle, TEXTS)


@pytest.fixture(scope="module")
def steady_voice(tiny_checkpoint: Path, tiny_bundle: Path) -> Judged:
    return judged(tiny_checkpoint, tiny_bundle, ("the you and the world",))


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


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_the_built_in_voice_misses_no_floor(built_in_voice: Judged, precision: str) -> None:
    assert built_in_voice.failures(precision) == []


@pytest.mark.parametrize("defect", [one_percent_more_condition, rows_one_position_late])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_defect_of_the_loop_is_found_in_forced_patches(
    built_in_voice: Judged, precision: str, defect: Callable[[VoxCPM], None]
) -> None:
    failures = built_in_voice.failures(precision, defect)
    assert any("teacher-forced, median patch" in line for line in failures), failures


def test_a_checkpoint_that_does_not_drift_keeps_the_fixed_floors(steady_voice: Judged) -> None:
    (fp16,) = steady_voice.sensitivity
    assert fp16.floor(fp16.free_running, 0.999) == 0.999
    # It reaches them, so that `validate` does not disturb upstream at all.
    assert replace(steady_voice, sensitivity=()).failures("fp16") == []


def test_without_drift_a_defect_is_found_in_the_worst_patch_too(steady_voice: Judged) -> None:
    failures = steady_voice.failures("fp16", rows_one_position_late)
    assert any("teacher-forced, worst patch" in line for line in failures), failures


def test_the_built_in_voice_is_disturbed_only_where_a_fixed_floor_is_missed(
    speaking_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def measured(_: object, precision: Any, *_given: object) -> Sensitivity:
        asked.append(precision)
        return Sensitivity(precision=precision, disturbance=0.005, free_running=0.0, worst_patch=0.0)

    monkeypatch.setattr(validate, "_measure_steps", lambda *given: ())
    monkeypatch.setattr(validate, "measure_sensitivity", measured)
    checked: dict[str, Any] = {"precisions": ["fp16"], "text": TEXTS[0], "patches": 4}
    monkeypatch.setattr(validate, "below_floors", lambda speech: [])
    assert validate.validate_bundle(speaking_bundle, str(DEFAULT_CHECKPOINT), **checked).sensitivity == ()
    monkeypatch.setattr(validate, "below_floors", lambda speech: [("free-running latents", 0.9, 0.999)])
    report = validate.validate_bundle(speaking_bundle, str(DEFAULT_CHECKPOINT), **checked)
    assert asked == [s.precision for s in report.sensitivity] == ["fp16"]


def test_a_floor_is_three_times_as_far_from_one_as_upstream_and_never_above_the_fixed_one() -> None:
    measured = Sensitivity(precision="fp16", disturbance=0.01, free_running=0.99, worst_patch=0.9)
    assert measured.floor(0.99, 0.999) == pytest.approx(0.97)
    assert measured.floor(1.0, 0.999) == 0.999
