import json
import os
import shutil
from pathlib import Path

import pytest

from edited_manifest import edit_manifest
from voxcpm_constants import step_models as names
from voxcpm_constants.manifest import record_file
from voxcpm_constants.vectors import vectors_path
from voxcpm_runtime.backends import machine
from voxcpm_runtime.backends.core_ml.compute_units import measured_units
from voxcpm_runtime.bundle.opening import open_bundle
from voxcpm_runtime.doctor import command
from voxcpm_runtime.doctor.trials import trials


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VOXCPM_COREML_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def bundle(tiny_bundle):
    return open_bundle(tiny_bundle, "fp16")


@pytest.fixture
def copied(tiny_bundle, tmp_path):
    return Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))


def tried(bundle, *names, unit="cpu_and_ne", limit=60.0):
    return trials(bundle, unit, names, limit=limit, on_start=lambda name, unit: None)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_the_portable_backend_is_correct_everywhere(tiny_bundle, precision, run):
    code, out, err = run("doctor", tiny_bundle, "--precision", precision, "--json")
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert [t["step_model"] for t in found["trials"]] == list(names.STEP_MODEL_NAMES)
    assert {(t["unit"], t["outcome"]) for t in found["trials"]} == {("portable", "correct")}
    assert found["chosen"] == dict.fromkeys(names.STEP_MODEL_NAMES, "portable")
    assert all(t["call_seconds"] > 0 and len(t["agreement"]["chain"]) == 12 for t in found["trials"])
    lm = next(t for t in found["trials"] if t["step_model"] == names.RESIDUAL_LM_STEP)["agreement"]
    assert set(lm["streams"]) == {"chain", "first_16", "first_64", "last_1", "last_16", "last_64"}
    if precision == "fp32":
        assert min(*lm["streams"].values(), lm["state"]) > 1 - 1e-6


@pytest.mark.long
def test_the_fastest_correct_unit_is_chosen_and_saved(core_ml, tiny_bundle, monkeypatch, run):
    monkeypatch.setitem(command.UNITS, "coreml", ("cpu", "cpu_and_ne"))
    core_ml.fault(package=names.AUDIO_VAE_DECODER, unit="CPU_AND_NE", at="predict", does="wrong")
    # Slower than any computation here, so that the other unit is the faster one.
    for name in set(names.STEP_MODEL_NAMES) - {names.AUDIO_VAE_DECODER}:
        core_ml.fault(package=name, unit="CPU_ONLY", at="predict", does="delay", seconds=0.1)
    code, out, _ = run("doctor", tiny_bundle, "--precision", "fp16", "--backend", "coreml", "--json")
    found = json.loads(out)
    expected = {**dict.fromkeys(names.STEP_MODEL_NAMES, "cpu_and_ne"), names.AUDIO_VAE_DECODER: "cpu"}
    assert (code, found["chosen"], found["saved"]) == (0, expected, True)
    assert measured_units(open_bundle(tiny_bundle, "fp16").digest) == expected
    assert measured_units(open_bundle(tiny_bundle, "int8").digest) == {}
    wrong = [t for t in found["trials"] if t["outcome"] == "wrong"]
    assert [(t["step_model"], t["unit"]) for t in wrong] == [(names.AUDIO_VAE_DECODER, "cpu_and_ne")]
    assert any("audio_vae_decoder gives wrong results on cpu_and_ne" in line for line in found["advice"])


def test_bundle_for_a_newer_system_is_reported_once(core_ml, tiny_bundle_15, run, refusal):
    core_ml.system("14.6.1", "23G93")
    code, out, _ = run("doctor", tiny_bundle_15, "--precision", "fp16", "--json")
    found = json.loads(out)
    assert code == 0
    assert {t["unit"] for t in found["trials"]} == {"portable"}
    assert sum("needs macOS 15 or newer" in line for line in found["advice"]) == 1
    assert not core_ml.events("load")
    given = (tiny_bundle_15, "--precision", "fp16", "--backend", "coreml")
    assert "needs macOS 15 or newer" in refusal("doctor", *given)


@pytest.mark.long
@pytest.mark.parametrize(
    ("does", "at", "outcome", "stage", "word"),
    [
        ("abort", "load", "crashed", "load", "SIGABRT"),
        ("kill", "predict", "crashed", "check", "SIGKILL"),
        ("hang", "load", "hung", "load", "no answer within 8 s"),
    ],
)
def test_new_child_continues_after_a_crash_or_a_timeout(core_ml, bundle, does, at, outcome, stage, word):
    core_ml.fault(package=names.LOCDIT_STEP, at=at, does=does)
    # A child has another minute to start.
    failed, correct = tried(bundle, names.LOCDIT_STEP, names.FEAT_ENCODER, limit=8.0)
    assert (failed.outcome, failed.stage, correct.outcome) == (outcome, stage, "correct")
    assert failed.message.startswith(word)
    assert (failed.load_seconds is None) == (at == "load")
    first, _ = {event["pid"]: event for event in core_ml.events("load")}
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)


def test_bundle_without_vectors_is_timed_but_not_checked(copied, run):
    def without_vectors(document):
        files = document["files"]
        document["files"] = {name: r for name, r in files.items() if not name.startswith("vectors/")}

    edit_manifest(copied, without_vectors)
    shutil.rmtree(copied / "vectors")
    code, out, _ = run("doctor", copied, "--precision", "fp16", "--json")
    found = json.loads(out)
    assert code == 1
    assert {t["outcome"] for t in found["trials"]} == {"unjudged"}
    assert all(t["call_seconds"] > 0 for t in found["trials"])
    assert (found["chosen"], found["saved"]) == ({}, False)
    assert any("Convert the checkpoint again" in line for line in found["advice"])
    assert not any("No unit is correct" in line for line in found["advice"])


def test_wrong_cache_rows_are_detected_despite_correct_outputs(copied):
    from safetensors.numpy import load_file, save_file

    path = copied / vectors_path(names.RESIDUAL_LM_STEP)
    arrays = load_file(path)
    arrays["last_64/state/v_cache_00"][:, :, -1] *= -1
    save_file(arrays, path)
    record = record_file(path).model_dump()
    edit_manifest(
        copied, lambda document: document["files"].update({str(vectors_path(names.RESIDUAL_LM_STEP)): record})
    )
    (wrong,) = tried(open_bundle(copied, "fp32"), names.RESIDUAL_LM_STEP, unit="portable")
    assert wrong.outcome == "wrong"
    assert wrong.agreement.state < 0.99
    assert min(wrong.agreement.streams.values()) > 1 - 1e-6


def test_missing_backend_says_what_to_install(tiny_bundle, monkeypatch, refusal):
    for backend in ("portable", "coreai"):
        monkeypatch.setitem(machine._BACKENDS, backend, ("absent_library",))
    assert "pip install" in refusal("doctor", tiny_bundle)
