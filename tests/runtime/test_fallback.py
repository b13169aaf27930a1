"""What `auto` takes: the kept choice, the usual unit, the CPU, the portable backend, and an error, in this order."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from voxcpm_constants.errors import BundleError
from voxcpm_constants.step_models import FEAT_ENCODER, LOCDIT_STEP
from voxcpm_runtime.backends import machine
from voxcpm_runtime.backends.compute_units import USUAL, usual_unit
from voxcpm_runtime.backends.coreml import CoreMLStepModel
from voxcpm_runtime.backends.loading import load_step_models
from voxcpm_runtime.backends.measured_units import keep_measured_units
from voxcpm_runtime.backends.portable import PortableStepModel
from voxcpm_runtime.bundle.opening import open_bundle
from voxcpm_runtime.voxcpm import VoxCPM

if TYPE_CHECKING:
    from coreml_stand_in.installation import StandIn


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VOXCPM_COREML_CACHE", str(tmp_path / "cache"))


def loaded(folder: Path, name: str = LOCDIT_STEP, backend: Any = "auto", **options: Any) -> Any:
    return load_step_models(open_bundle(folder, "fp16"), backend, names=[name], **options)[name]


def units(core_ml: StandIn) -> dict[str, str]:
    return {event["package"]: event["unit"] for event in core_ml.events("load")}


def test_the_kept_choice_comes_before_the_usual_unit(core_ml: StandIn, tiny_bundle: Path) -> None:
    bundle = open_bundle(tiny_bundle, "fp16")
    VoxCPM.from_bundle(bundle).close()
    names = {"cpu": "CPU_ONLY", "cpu_and_gpu": "CPU_AND_GPU", "cpu_and_ne": "CPU_AND_NE", "all": "ALL"}
    assert units(core_ml) == {name: names[usual_unit(name)] for name in bundle.manifest.step_models}

    keep_measured_units(bundle.digest, {LOCDIT_STEP: "all", FEAT_ENCODER: "portable"})
    with VoxCPM.from_bundle(bundle) as tts:
        assert units(core_ml)[LOCDIT_STEP] == "ALL"
        assert isinstance(tts.batch_driver.models[FEAT_ENCODER], PortableStepModel)
    with VoxCPM.from_bundle(bundle, backend="coreml") as tts:
        assert isinstance(tts.batch_driver.models[FEAT_ENCODER], CoreMLStepModel)


def test_the_callers_unit_comes_before_the_kept_choice(core_ml: StandIn, tiny_bundle: Path) -> None:
    loaded(tiny_bundle, compute_units="cpu", measured={LOCDIT_STEP: "all"})

    assert units(core_ml) == {LOCDIT_STEP: "CPU_ONLY"}


def test_the_cpu_takes_the_place_of_a_unit_that_refuses(core_ml: StandIn, tiny_bundle: Path) -> None:
    core_ml.fault(package=LOCDIT_STEP, unit="CPU_AND_NE", message="ANECCompile() FAILED")
    assert USUAL[LOCDIT_STEP] == "cpu_and_ne"

    with pytest.warns(UserWarning, match=r"locdit_step runs on cpu, as cpu_and_ne .*ANECCompile.* doctor"):
        model = loaded(tiny_bundle)

    assert isinstance(model, CoreMLStepModel)
    assert units(core_ml) == {LOCDIT_STEP: "CPU_ONLY"}


def test_the_portable_backend_takes_the_place_of_core_ml(core_ml: StandIn, tiny_bundle: Path) -> None:
    core_ml.fault(package=LOCDIT_STEP)

    with pytest.warns(UserWarning, match="locdit_step runs on portable, as cpu_and_ne does not take it"):
        model = loaded(tiny_bundle)

    assert isinstance(model, PortableStepModel)


@pytest.mark.parametrize("options", [{"backend": "coreml"}, {"compute_units": "cpu_and_ne"}])
def test_who_asks_for_core_ml_or_a_unit_gets_its_error(
    core_ml: StandIn, tiny_bundle: Path, options: dict[str, str]
) -> None:
    core_ml.fault(package=LOCDIT_STEP)

    with pytest.raises(BundleError, match="Core ML refuses it on cpu_and_ne"):
        loaded(tiny_bundle, **options)


def test_without_the_portable_backend_the_error_says_what_to_install(
    core_ml: StandIn, tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(machine._BACKENDS, "portable", ("absent_library",))
    core_ml.fault(package=LOCDIT_STEP)

    with pytest.raises(BundleError, match=r'refuses it on cpu_and_ne .*pip install "onnx'):
        loaded(tiny_bundle)
