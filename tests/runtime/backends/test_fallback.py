import pytest

from voxcpm_constants.errors import BundleError
from voxcpm_constants.step_models import BASE_LM_STEP, FEAT_ENCODER, LOCDIT_STEP
from voxcpm_runtime.backends import machine
from voxcpm_runtime.backends.core_ml.compute_units import DEFAULT_UNITS, save_measured_units
from voxcpm_runtime.backends.core_ml.step_model import CoreMLStepModel
from voxcpm_runtime.backends.loading import load_step_models
from voxcpm_runtime.backends.portable import PortableStepModel
from voxcpm_runtime.bundle.opening import open_bundle
from voxcpm_runtime.voxcpm import VoxCPM


def loaded(folder, name=LOCDIT_STEP, backend="auto", **options):
    return load_step_models(open_bundle(folder, "fp16"), backend, names=[name], **options)[name]


def units(core_ml):
    return {event["package"]: event["unit"] for event in core_ml.events("load")}


@pytest.mark.long
def test_the_saved_choice_comes_before_the_usual_unit(core_ml, tiny_bundle):
    bundle = open_bundle(tiny_bundle, "fp16")
    VoxCPM.from_bundle(bundle).close()
    names = {"cpu": "CPU_ONLY", "cpu_and_gpu": "CPU_AND_GPU", "cpu_and_ne": "CPU_AND_NE", "all": "ALL"}
    assert units(core_ml) == {name: names[DEFAULT_UNITS[name]] for name in bundle.manifest.step_models}
    save_measured_units(bundle.digest, {LOCDIT_STEP: "all", FEAT_ENCODER: "portable"})
    with VoxCPM.from_bundle(bundle) as tts:
        assert units(core_ml)[LOCDIT_STEP] == "ALL"
        assert isinstance(tts.driver.models[FEAT_ENCODER], PortableStepModel)
    with VoxCPM.from_bundle(bundle, backend="coreml") as tts:
        assert isinstance(tts.driver.models[FEAT_ENCODER], CoreMLStepModel)


def test_cpu_replaces_a_failing_unit_and_the_portable_backend_core_ml(core_ml, tiny_bundle):
    core_ml.fault(package=LOCDIT_STEP, unit="CPU_AND_NE", message="ANECCompile() FAILED")
    assert DEFAULT_UNITS[LOCDIT_STEP] == "cpu_and_ne"
    with pytest.warns(UserWarning, match=r"falls back from cpu_and_ne to cpu \(.*ANECCompile.* doctor"):
        model = loaded(tiny_bundle)
    assert isinstance(model, CoreMLStepModel)
    assert units(core_ml) == {LOCDIT_STEP: "CPU_ONLY"}
    core_ml.fault(package=LOCDIT_STEP)
    with pytest.warns(UserWarning, match="locdit_step falls back from cpu_and_ne and cpu to portable "):
        model = loaded(tiny_bundle)
    assert isinstance(model, PortableStepModel)


def test_explicit_backend_or_unit_does_not_fall_back(core_ml, tiny_bundle, monkeypatch):
    """Without the portable backend, `auto` fails too and says what to install."""
    core_ml.fault(package=LOCDIT_STEP)
    with pytest.raises(BundleError, match=r"Core ML rejects it on cpu_and_ne .*; try --backend portable"):
        loaded(tiny_bundle, backend="coreml")
    with pytest.raises(BundleError, match=r"Core ML rejects it on cpu_and_ne .*; try --compute-units"):
        loaded(tiny_bundle, compute_units="cpu_and_ne")
    monkeypatch.setitem(machine._BACKENDS, "portable", ("absent_library",))
    with pytest.raises(BundleError, match=r'rejects it on cpu_and_ne .*pip install "onnx'):
        loaded(tiny_bundle)


def test_saved_portable_choice_requires_the_backend(core_ml, tiny_bundle, monkeypatch):
    monkeypatch.setitem(machine._BACKENDS, "portable", ("absent_library",))
    save_measured_units(open_bundle(tiny_bundle, "fp16").digest, {LOCDIT_STEP: "portable"})
    model = loaded(tiny_bundle)
    assert isinstance(model, CoreMLStepModel)
    assert units(core_ml) == {LOCDIT_STEP: "CPU_AND_NE"}


def test_a_bundle_for_a_newer_system_runs_on_the_portable_backend_with_one_warning(
    core_ml, tiny_bundle_15, monkeypatch
):
    core_ml.system("14.6.1", "23G93")
    bundle = open_bundle(tiny_bundle_15, "fp16")
    with pytest.warns(UserWarning, match="needs macOS 15 or newer.* using the portable backend") as warned:
        models = load_step_models(bundle, names=[FEAT_ENCODER, LOCDIT_STEP])
    assert len(warned) == 1
    assert {type(model) for model in models.values()} == {PortableStepModel}
    for options in ({"backend": "coreml"}, {"compute_units": "cpu"}):
        with pytest.raises(BundleError, match="needs macOS 15 or newer"):
            loaded(tiny_bundle_15, **options)
    monkeypatch.setitem(machine._BACKENDS, "portable", ("absent_library",))
    with pytest.raises(BundleError, match="needs macOS 15 or newer"):
        loaded(tiny_bundle_15)


def test_the_advice_for_a_part_names_its_step_model(core_ml, tiny_parts_bundle):
    core_ml.fault(package=f"{BASE_LM_STEP}_2")
    bundle = open_bundle(tiny_parts_bundle, "fp16")
    with pytest.raises(BundleError, match=r"_2\.mlpackage.*try --compute-units base_lm_step=cpu or"):
        load_step_models(bundle, "coreml", names=[BASE_LM_STEP], compute_units="cpu_and_gpu")
