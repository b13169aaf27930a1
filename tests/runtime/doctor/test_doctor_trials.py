"""The doctor's trials: on the portable backend, and on Core ML's stand-in with everything that can go wrong."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from coremltools.proto import Model_pb2

from voxcpm_constants.step_models import (
    AUDIO_VAE_DECODER,
    AUDIO_VAE_ENCODER,
    FEAT_ENCODER,
    LOCDIT_SOLVE,
    LOCDIT_STEP,
    RESIDUAL_LM_STEP,
)
from voxcpm_runtime.backends.portable.package import MODEL_FILE
from voxcpm_runtime.bundle.opening import Bundle, open_bundle
from voxcpm_runtime.doctor.placement import operations_by_device
from voxcpm_runtime.doctor.trials import Trial, endurance, trials

if TYPE_CHECKING:
    from coreml_stand_in.installation import StandIn


# A child has a minute more to start.
LIMIT = 8.0


def tried(bundle: Bundle, *names: str, unit: str = "cpu_and_ne", limit: float = 60.0) -> list[Trial]:
    return trials(bundle, unit, names, limit=limit, begun=lambda name, unit: None)


def test_every_optional_form_is_tried(tiny_parts_bundle: Path) -> None:
    bundle = open_bundle(tiny_parts_bundle, "fp32")
    assert LOCDIT_SOLVE in bundle.manifest.step_models

    found = tried(bundle, *bundle.manifest.step_models, unit="portable")

    assert [(t.step_model, t.outcome) for t in found] == [(n, "correct") for n in bundle.manifest.step_models]
    assert all(t.agreement is not None and t.agreement.worst > 1 - 1e-6 for t in found)


@pytest.mark.usefixtures("core_ml")
def test_states_and_functions_of_macos_15_are_tried(tiny_bundle_15: Path) -> None:
    (found,) = tried(open_bundle(tiny_bundle_15, "fp16"), RESIDUAL_LM_STEP)

    assert found.outcome == "correct"
    assert found.agreement is not None
    assert found.agreement.worst > 0.999


def test_a_refusal_has_core_mls_words_and_the_trials_go_on(core_ml: StandIn, bundle: Bundle) -> None:
    core_ml.fault(package=LOCDIT_STEP, unit="CPU_AND_NE", message="ANECCompile() FAILED")

    refused, correct = tried(bundle, LOCDIT_STEP, FEAT_ENCODER)

    assert (refused.outcome, correct.outcome) == ("refused", "correct")
    assert "ANECCompile() FAILED" in refused.message


@pytest.mark.parametrize(
    ("does", "word", "at", "stage"),
    [("abort", "SIGABRT", "load", "load"), ("kill", "SIGKILL", "predict", "check")],
)
def test_a_crash_is_a_row_and_the_trials_go_on_in_another_child(
    core_ml: StandIn, bundle: Bundle, does: str, word: str, at: str, stage: str
) -> None:
    core_ml.fault(package=LOCDIT_STEP, at=at, does=does)

    crashed, correct = tried(bundle, LOCDIT_STEP, FEAT_ENCODER)

    assert (crashed.outcome, crashed.stage, crashed.message[:7]) == ("crashed", stage, word)
    assert (crashed.load_seconds is None) == (at == "load")
    assert correct.outcome == "correct"
    assert len({event["pid"] for event in core_ml.events("load")}) == 2


def test_a_child_that_hangs_is_ended_after_its_time(core_ml: StandIn, bundle: Bundle) -> None:
    core_ml.fault(package=LOCDIT_STEP, does="hang")

    hung, correct = tried(bundle, LOCDIT_STEP, FEAT_ENCODER, limit=LIMIT)

    assert (hung.outcome, hung.stage, correct.outcome) == ("hung", "load", "correct")
    (pid,) = {event["pid"] for event in core_ml.events("load") if event["package"] == LOCDIT_STEP}
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.long
def test_a_unit_that_ends_the_process_after_a_while_is_replaced(core_ml: StandIn, bundle: Bundle) -> None:
    """Also tried is the fp32 AudioVAE, which the bundle has."""
    core_ml.fault(package=AUDIO_VAE_DECODER, unit="CPU_ONLY", at="predict", does="abort", after=20)
    found = [Trial(step_model=AUDIO_VAE_DECODER, unit=u, outcome="correct") for u in ("cpu", "cpu_and_gpu")]
    found += [Trial(step_model=AUDIO_VAE_ENCODER, unit="cpu", outcome="correct", call_seconds=1.0)]

    first, *others = endurance(bundle, found, 3 / 60, limit=60, begun=lambda name, unit: None)

    assert (first.outcome, first.step_model, first.precision) == ("crashed", AUDIO_VAE_DECODER, "fp16")
    assert first.message.startswith("SIGABRT")
    assert first.units == {AUDIO_VAE_DECODER: "cpu", AUDIO_VAE_ENCODER: "cpu"}
    assert [(o.precision, o.units[AUDIO_VAE_DECODER]) for o in others] == [
        ("fp32", "cpu"),
        ("fp16", "cpu_and_gpu"),
    ]
    assert others[1].outcome == "done"
    assert others[1].seconds >= 3


class MLCPUComputeDevice:
    pass


def test_the_plan_counts_the_operations_of_the_default_function(
    core_ml: StandIn,  # noqa: ARG001 - in place
    tiny_bundle_15: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Core ML plans the default function of a package only."""
    from coremltools.models import compute_plan

    def load_from_path(path: str, _unit: object) -> SimpleNamespace:
        spec = Model_pb2.Model()
        spec.ParseFromString((Path(path) / MODEL_FILE).read_bytes())
        blocks = {
            name: SimpleNamespace(block=SimpleNamespace(operations=[(name, index) for index in range(3)]))
            for name in spec.mlProgram.functions
        }
        planned = SimpleNamespace(preferred_compute_device=MLCPUComputeDevice())
        default = spec.description.defaultFunctionName
        return SimpleNamespace(
            model_structure=SimpleNamespace(program=SimpleNamespace(functions=blocks)),
            get_compute_device_usage_for_mlprogram_operation=lambda o: planned if o[0] == default else None,
        )

    monkeypatch.setattr(compute_plan, "MLComputePlan", SimpleNamespace(load_from_path=load_from_path))
    package = tiny_bundle_15 / "fp16" / f"{RESIDUAL_LM_STEP}.mlpackage"

    assert operations_by_device(package, "digest", "cpu") == {"cpu": 3}
