import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from voxcpm_constants.errors import BundleError
from voxcpm_constants.step_models import BASE_LM_STEP, FEAT_ENCODER, LOCDIT_STEP, RESIDUAL_LM_STEP
from voxcpm_runtime.backends import compilation
from voxcpm_runtime.backends.loading import load_step_models
from voxcpm_runtime.bundle.opening import open_bundle


@pytest.fixture
def cache(private_cache):
    return private_cache / "compiled"


@pytest.fixture
def load(core_ml, tiny_bundle):  # noqa: ARG001 - in place
    """Loads one step model of a bundle on Core ML."""

    def load(name=LOCDIT_STEP, folder=tiny_bundle, **options):
        return load_step_models(open_bundle(folder, "fp16"), "coreml", names=[name], **options)[name]

    return load


def test_damaged_program_is_rebuilt_once_and_that_of_another_system_removed(load, core_ml, cache):
    load()
    (entry,) = cache.glob("*.mlmodelc")
    (entry / "coremldata.bin").write_bytes(b"")
    # Left by a killed compilation.
    unfinished = entry.with_name(f".{entry.name}")
    unfinished.mkdir()
    load()
    load()
    assert len(core_ml.events("compile")) == 2
    assert not unfinished.exists()
    core_ml.system("15.6", "24G84")
    load()
    assert len(core_ml.events("compile")) == 3
    assert [entry.name.partition("-")[2] for entry in cache.glob("*.mlmodelc")] == ["24G84.mlmodelc"]


@pytest.mark.long
@pytest.mark.parametrize(("system", "hint"), [("15.5", {"reshapeFrequency": "Infrequent"}), ("14.6", {})])
def test_enumerated_lengths_rarely_change(load, core_ml, tiny_bundle_15, system, hint):
    """coremltools rejects hints before macOS 15. Packages without enumerated lengths need none."""
    core_ml.system(system, "1A1")
    load(FEAT_ENCODER)
    load(LOCDIT_STEP)
    if hint:
        load(BASE_LM_STEP, tiny_bundle_15)
    assert [event["hints"] for event in core_ml.events("load", here=True)] == [
        hint,
        {},
        *([{}, {}] if hint else []),
    ]


def test_crashing_unit_is_one_line_and_falls_back_to_the_cpu_without_compiling_again(
    load, core_ml, tiny_bundle
):
    core_ml.fault(at="first load", unit="CPU_AND_NE", does="abort")
    line = r"Core ML rejects it on cpu_and_ne \(it crashed the child process: SIGABRT"
    with pytest.warns(UserWarning, match=f"locdit_step falls back from cpu_and_ne to cpu .*{line}"):
        load_step_models(open_bundle(tiny_bundle, "fp16"), names=[LOCDIT_STEP])
    with pytest.raises(BundleError, match=f"{line}.*; try --compute-units locdit_step=cpu"):
        load(compute_units="cpu_and_ne")
    assert len(core_ml.events("compile")) == 1


def test_core_ml_is_never_the_only_owner_of_an_input(load, core_ml, tiny_bundle, tiny_bundle_15):
    """It releases inputs a second after a prediction, without the GIL. By then the model may be gone, and the state."""
    for folder in (tiny_bundle, tiny_bundle_15):
        declared = open_bundle(folder, "fp16").manifest.step_models[RESIDUAL_LM_STEP]
        model = load(RESIDUAL_LM_STEP, folder, first_use=None, compute_units="cpu")
        for _ in range(2):
            state = model.new_state()
            model({t.name: np.zeros(t.shape_at(0), t.dtype) for t in declared.inputs}, state)
            state.set_rows(0, state.rows(1, 2))
        del model, state
    # The arrays must outlive Core ML's use; the fixture checks again.
    time.sleep(1.5)
    assert not core_ml.events("crash")


@pytest.mark.long
def test_python_threads_run_while_core_ml_compiles_and_first_loads(load, core_ml):
    """The binding never releases the GIL, so a child process compiles and loads first."""
    core_ml.fault(at="compile", does="delay", seconds=3)
    core_ml.fault(at="first load", does="delay", seconds=3)
    ticks = [time.monotonic()]
    ended = threading.Event()

    def tick():
        while not ended.wait(0.02):
            ticks.append(time.monotonic())

    clock, said = threading.Thread(target=tick), []
    clock.start()
    load(compute_units="cpu_and_gpu", first_use=said.append)
    ended.set()
    clock.join()
    assert max(after - before for before, after in pairwise(ticks)) < 2.5
    assert ticks[-1] - ticks[0] > 6
    assert [line.split()[2] for line in said] == ["compiles", "prepares"]
    assert {e["pid"] for at in ("compile", "first load") for e in core_ml.events(at)}.isdisjoint(
        {os.getpid()}
    )
    load(compute_units="cpu_and_gpu", first_use=said.append)
    assert len(said) == 2


def test_compiler_that_hangs_is_killed(load, core_ml, monkeypatch):
    monkeypatch.setattr(compilation, "LOCK_SECONDS", 2)
    core_ml.fault(at="compile", does="hang")
    with pytest.raises(BundleError, match=r"cannot compile it .*no answer within 2 s"):
        load()


@pytest.mark.long
@pytest.mark.parametrize("at", ["compile", "first load"])
def test_ctrl_c_aborts_compilation(core_ml, tiny_bundle, tmp_path, at):
    core_ml.fault(at=at, does="hang")
    given = [str(tiny_bundle), "--precision", "fp16", "-t", "one", "-o", str(tmp_path / "o.wav")]
    # Background jobs of a shell ignore SIGINT, and so would this child.
    heard = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)"
    program = f"{heard}; from voxcpm_runtime.commands.cli import main; sys.exit(main())"
    with subprocess.Popen(
        [sys.executable, "-c", program, "generate", *given], stderr=subprocess.PIPE, text=True
    ) as speaking:
        while not core_ml.events(at):
            assert speaking.poll() is None
            time.sleep(0.05)
        began = time.monotonic()
        speaking.send_signal(signal.SIGINT)
        _, told = speaking.communicate(timeout=20)
    assert (speaking.returncode, told.splitlines()[-1]) == (130, "error: interrupted")
    assert time.monotonic() - began < 5
    child = Path(f"/proc/{core_ml.events(at)[0]['pid']}/stat")
    # A container may leave the zombie of a process without a parent.
    assert not child.exists() or child.read_text().rpartition(") ")[2][0] == "Z"


def test_every_function_is_loaded_when_the_bundle_is_opened(load, core_ml, tiny_bundle_15):
    load(BASE_LM_STEP, tiny_bundle_15)
    assert [event["function"] for event in core_ml.events("load", here=True)] == ["decode", "prefill_16"]
    core_ml.fault(
        package=BASE_LM_STEP, function="prefill_16", message=".functionName property must be nil unless …"
    )
    with pytest.raises(BundleError, match="the package is too large, or the system rejects one of its"):
        load(BASE_LM_STEP, tiny_bundle_15)


def test_a_shipped_compiled_package_is_used_unless_it_cannot_be_loaded(load, core_ml, tiny_bundle, tmp_path):
    """A conversion on a Mac writes a compiled form next to the package."""
    import coremltools

    folder = tmp_path / "bundle"
    shutil.copytree(tiny_bundle, folder, copy_function=os.link)
    package = folder / "fp16" / f"{LOCDIT_STEP}.mlpackage"
    shipped = package.with_suffix(".mlmodelc")
    coremltools.utils.compile_model(str(package), str(shipped))
    load(folder=folder)
    assert len(core_ml.events("compile")) == 1  # the conversion's
    (shipped / "coremldata.bin").unlink()
    load(folder=folder)
    assert len(core_ml.events("compile")) == 2


def test_without_a_cache_step_models_are_compiled_for_this_process(
    load, core_ml, cache, monkeypatch, tmp_path
):
    cache.parent.mkdir()
    cache.write_text("a file where the folder would be")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.warns(UserWarning, match="compiled step models cannot be saved") as warned:
        model = load()
    assert len(warned) == 1
    assert len(core_ml.events("compile")) == 1
    left = set(tmp_path.glob("voxcpm-coreml-compiled-*/*.mlmodelc"))
    assert len(left) == 1
    del model
    assert not list(tmp_path.glob("voxcpm-coreml-compiled-*"))


def test_package_with_other_tensors_is_rejected_before_compilation(core_ml, tiny_bundle):
    bundle = open_bundle(tiny_bundle, "fp16")
    declared = bundle.manifest.step_models[FEAT_ENCODER]
    renamed = declared.model_copy(
        update={"outputs": (declared.outputs[0].model_copy(update={"name": "other"}),)}
    )
    models = {**bundle.manifest.step_models, FEAT_ENCODER: renamed}
    bundle = replace(bundle, manifest=bundle.manifest.model_copy(update={"step_models": models}))
    with pytest.raises(BundleError, match=r"outputs do not match feat_encoder .embeddings is unknown."):
        load_step_models(bundle, "coreml", names=[FEAT_ENCODER])
    assert not core_ml.events("compile")


@pytest.mark.long
def test_two_processes_compile_once(core_ml, tiny_bundle):
    program = (
        "import sys; from voxcpm_runtime.backends.loading import load_step_models; "
        "from voxcpm_runtime.bundle.opening import open_bundle; "
        "load_step_models(open_bundle(sys.argv[1], 'fp16'), 'coreml', names=['locdit_step'])"
    )
    core_ml.fault(at="compile", does="delay", seconds=0.5)
    given = [sys.executable, "-c", program, str(tiny_bundle)]
    children = [subprocess.Popen(given, stderr=subprocess.PIPE) for _ in "12"]
    for child in children:
        _, error = child.communicate()
        assert child.returncode == 0, error
    assert len(core_ml.events("compile")) == 1
    assert {child.pid for child in children} <= {event["pid"] for event in core_ml.events("load")}


@pytest.mark.long
def test_core_ml_failure_while_speaking_is_one_line(core_ml, tiny_bundle, refusal, tmp_path):
    core_ml.fault(at="predict", package=LOCDIT_STEP)
    line = refusal("generate", tiny_bundle, "--precision", "fp16", "-t", "one", "-o", tmp_path / "o.wav")
    assert "Core ML failed in locdit_step (Unable to compute the prediction" in line
    assert not (tmp_path / "o.wav").exists()
