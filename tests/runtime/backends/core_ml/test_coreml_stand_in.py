"""The stand-in for Core ML behaves as coremltools does on a Mac, and can be reached from child processes."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from voxcpm_constants.manifest import Manifest
from voxcpm_constants.step_models import AUDIO_VAE_DECODER, BASE_LM_STEP, LOCDIT_STEP, StepModel
from voxcpm_constants.targets import MAIN, package_form

if TYPE_CHECKING:
    from coreml_stand_in.installation import StandIn

# Loads a package without state and predicts once: what a trial of a compute unit does.
TRIAL = """
import sys, coremltools as ct, numpy as np
model = ct.models.MLModel(sys.argv[1], compute_units=ct.ComputeUnit.CPU_AND_NE)
inputs = model.get_spec().description.input
given = {i.name: np.zeros(list(i.type.multiArrayType.shape), np.float32) for i in inputs}
results = model.predict(given)
print("torch" in sys.modules, *results)
"""


@pytest.fixture
def ct(core_ml: StandIn) -> Any:  # noqa: ARG001 - coremltools with the stand-in
    import coremltools

    return coremltools


KEPT = []
"""Inputs that must outlive their prediction."""


def zeros(declared: StepModel) -> dict[str, np.ndarray]:
    KEPT.append({
        t.name: np.zeros(t.shape_at(0), np.int32 if t.dtype == "int32" else np.float32)
        for t in (*declared.inputs, *declared.state)
    })  # fmt: skip
    return KEPT[-1]


def test_results_are_float32_strided_and_read_only(ct: Any, tiny_bundle: Path) -> None:
    declared = Manifest.read(tiny_bundle).step_models[AUDIO_VAE_DECODER]
    model = ct.models.MLModel(str(tiny_bundle / "fp16" / f"{AUDIO_VAE_DECODER}.mlpackage"))

    results = model.predict(zeros(declared))

    assert set(results) == {"audio", *(t.output_name for t in declared.state)}
    assert {array.dtype for array in results.values()} == {np.dtype(np.float32)}
    context = results[declared.state[-1].output_name]
    assert not context.flags.c_contiguous
    assert not context.flags.writeable
    np.testing.assert_array_equal(context, context.astype(np.float16))


def test_a_refused_package_is_a_warning_and_then_an_error(
    ct: Any, core_ml: StandIn, tiny_bundle: Path
) -> None:
    core_ml.fault(package=LOCDIT_STEP, unit="CPU_AND_NE", message="ANECCompile() FAILED")
    package = str(tiny_bundle / "fp16" / f"{LOCDIT_STEP}.mlpackage")

    with pytest.warns(RuntimeWarning, match="will not be able to run predict"):
        model = ct.models.MLModel(package, compute_units=ct.ComputeUnit.CPU_AND_NE)

    assert model.__proxy__ is None
    with pytest.raises(RuntimeError, match="ANECCompile"):
        model.predict({})
    with pytest.raises(Exception, match="not loaded with the Core ML Framework"):
        model.make_state()
    assert ct.models.MLModel(package, compute_units=ct.ComputeUnit.CPU_ONLY).__proxy__ is not None


def test_macos_14_cannot_open_what_needs_macos_15(ct: Any, core_ml: StandIn, tiny_bundle_15: Path) -> None:
    core_ml.system("14.6.1", "23G93")

    model = ct.models.MLModel(str(tiny_bundle_15 / "fp16" / f"{BASE_LM_STEP}.mlpackage"))

    assert model.__proxy__ is None
    with pytest.raises(Exception, match="only supports Core ML model specification version 8"):
        model.predict({})


def test_functions_of_a_compiled_package_share_a_state(
    ct: Any, core_ml: StandIn, tiny_bundle_15: Path, tmp_path: Path
) -> None:
    manifest = Manifest.read(tiny_bundle_15)
    form = package_form(manifest.step_models[BASE_LM_STEP], manifest.target)
    compiled = str(tmp_path / "compiled.mlmodelc")
    package = str(tiny_bundle_15 / "fp16" / f"{BASE_LM_STEP}.mlpackage")
    ct.models.utils.compile_model(package, destination_path=compiled)
    (first, one), (other, several) = list(form.functions.items())[:2]
    models = [ct.models.CompiledMLModel(compiled, function_name=name) for name in (first, other)]
    state = models[0].make_state()

    for model, declared in zip(models, (one, several), strict=True):
        given = zeros(declared.model_copy(update={"state": ()}))
        model.predict(given, state)

    name = one.state[0].name
    row = state.read_state(name)
    KEPT.append({name: row + np.float32(1 / 3)})
    state.write_state(name, KEPT[-1][name])
    np.testing.assert_array_equal(state.read_state(name), (row + np.float32(1 / 3)).astype(np.float16))
    with pytest.raises(RuntimeError, match="does not exist"):
        state.read_state("cache")
    assert [event["function"] for event in core_ml.events("load")] == [first, other]


@pytest.mark.usefixtures("core_ml")
def test_a_function_is_named_only_where_there_are_several(ct: Any, tiny_bundle: Path, tmp_path: Path) -> None:
    compiled = str(tmp_path / "compiled.mlmodelc")
    package = str(tiny_bundle / "fp16" / f"{LOCDIT_STEP}.mlpackage")
    ct.models.utils.compile_model(package, destination_path=compiled)

    with pytest.raises(RuntimeError, match="functionName property must be nil"):
        ct.models.CompiledMLModel(compiled, function_name=MAIN)


def test_a_damaged_compiled_package_is_refused(ct: Any, tiny_bundle: Path, tmp_path: Path) -> None:
    compiled = tmp_path / "compiled.mlmodelc"
    package = str(tiny_bundle / "fp16" / f"{LOCDIT_STEP}.mlpackage")
    ct.models.utils.compile_model(package, destination_path=str(compiled))
    weights = next(compiled.rglob("weight.bin"))
    weights.write_bytes(weights.read_bytes()[:-1])

    with pytest.raises(RuntimeError, match=r"not a valid \.mlmodelc file"):
        ct.models.CompiledMLModel(str(compiled))


def test_child_processes_have_the_stand_in_and_die_of_its_faults(core_ml: StandIn, tiny_bundle: Path) -> None:
    given = [sys.executable, "-c", TRIAL, str(tiny_bundle / "fp16" / f"{LOCDIT_STEP}.mlpackage")]

    whole = subprocess.run(given, capture_output=True, text=True, check=False)
    assert (whole.returncode, whole.stdout) == (0, "False velocity\n"), whole.stderr
    for at, does, code in (("load", "abort", -signal.SIGABRT), ("predict", "kill", -signal.SIGKILL)):
        core_ml.mend()
        core_ml.fault(unit="CPU_AND_NE", at=at, does=does)
        assert subprocess.run(given, stderr=subprocess.DEVNULL, check=False).returncode == code
    assert len({event["pid"] for event in core_ml.events("load")}) == 3


def test_a_child_crashes_where_core_ml_alone_has_an_input(core_ml: StandIn, tiny_bundle: Path) -> None:
    """About a second after the prediction, as on a Mac, or at the end of the process."""
    package = str(tiny_bundle / "fp16" / f"{LOCDIT_STEP}.mlpackage")
    lost = TRIAL.replace("print(", "del given; import time; time.sleep(float(sys.argv[2])); print(")

    for seconds, printed in (("0", True), ("30", False)):
        given = [sys.executable, "-c", lost, package, seconds]
        child = subprocess.run(given, capture_output=True, text=True, check=False)
        assert (child.returncode, bool(child.stdout)) == (-signal.SIGSEGV, printed), child.stderr

    assert all("was owned by Core ML alone" in event["reason"] for event in core_ml.events("crash"))
    core_ml.log.unlink()


def test_a_child_that_hangs_can_be_ended_from_outside_only(core_ml: StandIn, tiny_bundle: Path) -> None:
    core_ml.fault(does="hang")
    package = str(tiny_bundle / "fp16" / f"{LOCDIT_STEP}.mlpackage")
    # An alarm's handler is Python, which needs the GIL.
    program = f"import signal; signal.signal(signal.SIGALRM, lambda *_: 1 / 0); signal.alarm(20){TRIAL}"

    with subprocess.Popen([sys.executable, "-c", program, package], stdout=subprocess.DEVNULL) as child:
        while not core_ml.events("load"):
            assert child.poll() is None
            time.sleep(0.05)
        child.send_signal(signal.SIGALRM)
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.5)
        child.kill()
    assert child.returncode == -signal.SIGKILL
