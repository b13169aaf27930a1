"""Bundles for macOS 27 on Apple's Core AI runtime: step models and whole utterances against upstream."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from core_ai_agreement import (
    TEXT,
    Reference,
    check_utterances,
    measured,
    recorded,
)
from voxcpm_constants.step_models import (
    BASE_LM_STEP,
    LOCDIT_STEP,
    STEP_MODEL_NAMES,
)
from voxcpm_runtime.backends.core_ai.worker import CoreAIWorker
from voxcpm_runtime.voxcpm import VoxCPM
from voxcpm_validation import step_agreement, validate
from voxcpm_validation.end_to_end import EndToEnd
from voxcpm_validation.measures import agreement
from voxcpm_validation.report import CORE_AI_FLOORS, Report, below_floors

pytest.importorskip("coreai_torch", exc_type=ImportError)


@pytest.fixture(scope="module", autouse=True)
def _cache(compiled_27: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("VOXCPM_COREML_CACHE", str(compiled_27))
        yield


@pytest.fixture(scope="module")
def first(tiny_checkpoint: Path, tiny_bundle_27: Path) -> tuple[Any, Reference]:
    return recorded(tiny_checkpoint, tiny_bundle_27)


@pytest.mark.parametrize("name", STEP_MODEL_NAMES)
def test_fp16_step_models_reach_the_floors_of_linuxs_half_arithmetic_at_every_length(
    tiny_bundle_27: Path, first: tuple[Any, Reference], name: str
) -> None:
    found = measured(tiny_bundle_27, "fp16", first[1], name)
    assert found.lowest >= CORE_AI_FLOORS["fp16"][name]
    # Half arithmetic, not float32 on half weights.
    assert all(output.snr_db < 70 for output in found.outputs.values())


def test_speech_in_half_arithmetic_has_floors_of_its_own_on_core_ai() -> None:
    equal = agreement(np.arange(4.0), np.arange(4.0))
    speech = EndToEnd(
        case="zero-shot", precision="fp16", patches=4, upstream_patches=4, free_running_latents=equal,
        waveform=equal, teacher_forced_worst=0.9985, teacher_forced_median=0.9998,
    )  # fmt: skip
    assert not below_floors(speech, core_ai=True)
    assert len(below_floors(speech)) == 2
    wrong = speech.model_copy(update={"teacher_forced_worst": 0.998, "teacher_forced_median": 0.9996})
    assert len(below_floors(wrong, core_ai=True)) == 2


class Defective:
    """A step model with a defect in what it is given."""

    def __init__(self, model: Any, spoilt: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        self.model, self.spoilt, self.new_state = model, spoilt, model.new_state

    def __call__(self, inputs: Mapping[str, Any], state: Any = None) -> dict[str, npt.NDArray[Any]]:
        outputs: dict[str, npt.NDArray[Any]] = self.model(self.spoilt(dict(inputs)), state)
        return outputs


def one_row_late(inputs: dict[str, Any]) -> dict[str, Any]:
    # From the second call on, so that a row of the cache is left out.
    late = inputs["position"] + (inputs["position"] > 0)
    return {**inputs, "position": late.astype(np.int32)}


def mu_by_a_hundredth(inputs: dict[str, Any]) -> dict[str, Any]:
    return {**inputs, "mu": inputs["mu"] * np.float32(1.01)}


@pytest.mark.parametrize(("name", "spoilt"), [(BASE_LM_STEP, one_row_late), (LOCDIT_STEP, mu_by_a_hundredth)])
def test_a_defect_is_below_the_floor(
    tiny_bundle_27: Path,
    first: tuple[Any, Reference],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    spoilt: Callable[[dict[str, Any]], dict[str, Any]],
) -> None:
    def load(*wanted: Any) -> Any:
        model = CoreAIWorker(*wanted).step_models[name]
        return SimpleNamespace(step_models={name: Defective(model, spoilt)})

    monkeypatch.setattr(step_agreement, "CoreAIWorker", load)
    found = measured(tiny_bundle_27, "fp32", first[1], name)
    report = Report(bundle="b", checkpoint="c", tools={}, steps=(found,), end_to_end=())
    assert [line.split(":")[0] for line in report.failures()] == [f"{name} fp32 core-ai"]


def test_utterances_in_fp32_equal_upstreams_and_the_portable_executors(
    first: tuple[Any, Reference], tiny_bundle_27: Path, tiny_bundle: Path
) -> None:
    modes = check_utterances(
        first[0], VoxCPM.from_bundle(tiny_bundle_27, "fp32"), VoxCPM.from_bundle(tiny_bundle, "fp32")
    )
    assert modes == ["zero-shot", "continuation"]


def test_validation_measures_on_core_ai_and_says_what_it_left_out(
    tiny_bundle_27: Path, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half arithmetic speaks fewer patches; here fewer still."""
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
    assert report.tools.keys() == {"voxcpm", "torch", "coreai-core", "numpy"}
    markdown = report.markdown()
    assert "| base_lm_step | fp32 | core-ai | 16 |" in markdown
    assert "fp16: utterances of 2 patches, not 3" in markdown
