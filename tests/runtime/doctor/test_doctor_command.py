"""The command `doctor`: what it tells, what it chooses and keeps, and what it refuses."""

from __future__ import annotations

import getpass
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from voxcpm_constants.manifest import Manifest
from voxcpm_constants.step_models import (
    AUDIO_VAE_DECODER,
    AUDIO_VAE_ENCODER,
    FEAT_ENCODER,
    LOCDIT_STEP,
    RESIDUAL_LM_STEP,
    STEP_MODEL_NAMES,
)
from voxcpm_runtime.backends import machine
from voxcpm_runtime.backends.core_ml.compute_units import measured_units
from voxcpm_runtime.bundle.opening import Bundle, open_bundle
from voxcpm_runtime.commands import cli
from voxcpm_runtime.doctor import examination
from voxcpm_runtime.doctor.examination import examine

if TYPE_CHECKING:
    from coreml_stand_in.installation import StandIn


def doctored(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = cli.main(["doctor", *map(str, arguments)])
    told = capsys.readouterr()
    return code, told.out, told.err


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_the_portable_backend_is_correct_everywhere(
    tiny_bundle: Path, precision: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = doctored(capsys, tiny_bundle, "--precision", precision, "--json")

    found = json.loads(out)
    assert (code, err) == (0, "")
    assert [t["step_model"] for t in found["trials"]] == list(STEP_MODEL_NAMES)
    assert {(t["unit"], t["outcome"]) for t in found["trials"]} == {("portable", "correct")}
    assert found["chosen"] == dict.fromkeys(STEP_MODEL_NAMES, "portable")
    assert all(t["call_seconds"] > 0 and len(t["agreement"]["chain"]) == 12 for t in found["trials"])
    lm = next(t for t in found["trials"] if t["step_model"] == RESIDUAL_LM_STEP)["agreement"]
    assert set(lm["streams"]) == {"chain", "first_16", "first_64", "last_1", "last_16", "last_64"}
    if precision == "fp32":
        assert min(*lm["streams"].values(), lm["state"]) > 1 - 1e-6


def test_a_unit_with_wrong_numbers_is_not_chosen_and_the_choice_is_saved(
    core_ml: StandIn, tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(examination.UNITS, "coreml", ("cpu", "cpu_and_ne"))
    core_ml.fault(package=AUDIO_VAE_DECODER, unit="CPU_AND_NE", at="predict", does="wrong")
    # Slower than any computation here, so that the other unit is the faster one.
    for name in set(STEP_MODEL_NAMES) - {AUDIO_VAE_DECODER}:
        core_ml.fault(package=name, unit="CPU_ONLY", at="predict", does="delay", seconds=0.1)

    code, out, _ = doctored(capsys, tiny_bundle, "--precision", "fp16", "--backend", "coreml", "--json")

    found = json.loads(out)
    expected = {**dict.fromkeys(STEP_MODEL_NAMES, "cpu_and_ne"), AUDIO_VAE_DECODER: "cpu"}
    assert (code, found["chosen"], found["saved"]) == (0, expected, True)
    assert measured_units(open_bundle(tiny_bundle, "fp16").digest) == expected
    assert measured_units(open_bundle(tiny_bundle, "int8").digest) == {}
    wrong = [t for t in found["trials"] if t["outcome"] == "wrong"]
    assert [(t["step_model"], t["unit"]) for t in wrong] == [(AUDIO_VAE_DECODER, "cpu_and_ne")]
    assert any("audio_vae_decoder gives wrong numbers on cpu_and_ne" in line for line in found["advice"])
    # The stand-in has no plan, as systems before macOS 14.4 have none; every correct trial has the reason.
    assert {t["operations"] for t in found["trials"]} == {None}
    assert [bool(t["no_plan"]) for t in found["trials"]] == [
        t["outcome"] == "correct" for t in found["trials"]
    ]


def test_a_bundle_for_a_newer_system_is_refused_once(
    core_ml: StandIn, tiny_bundle_15: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    core_ml.system("14.6.1", "23G93")

    code, out, _ = doctored(capsys, tiny_bundle_15, "--precision", "fp16", "--json")

    found = json.loads(out)
    assert code == 0
    assert {t["unit"] for t in found["trials"]} == {"portable"}
    assert sum("needs macOS 15 or newer" in line for line in found["advice"]) == 1
    assert not core_ml.events("load")
    code, out, err = doctored(capsys, tiny_bundle_15, "--precision", "fp16", "--backend", "coreml")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "needs macOS 15 or newer" in err


def test_a_step_model_without_a_correct_unit_is_told_and_the_portable_backend_takes_its_place(
    core_ml: StandIn, tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(examination.UNITS, "coreml", ("cpu_and_ne",))
    core_ml.fault(package=LOCDIT_STEP, message=f"no {tiny_bundle}/fp16/{LOCDIT_STEP}.mlpackage")

    code, out, _ = doctored(capsys, tiny_bundle, "--precision", "fp16", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["chosen"][LOCDIT_STEP] == "portable"
    assert found["chosen"][FEAT_ENCODER] == "cpu_and_ne"

    code, out, _ = doctored(capsys, tiny_bundle, "--precision", "fp16", "--backend", "coreml")
    assert code == 1
    told = " ".join(out.split())
    assert "No unit is correct for locdit_step." in told
    assert "locdit_step is refused on cpu_and_ne" in told


def test_ctrl_c_ends_the_children(core_ml: StandIn, tiny_bundle: Path) -> None:
    core_ml.fault(does="hang")
    # A shell's background job ignores the signal, and so would its children.
    heard = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)"
    program = f"{heard}; from voxcpm_runtime.commands.cli import main; sys.exit(main())"
    given = [sys.executable, "-c", program, "doctor", str(tiny_bundle), "--precision", "fp16"]

    with subprocess.Popen(given, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as doctor:
        while not core_ml.events("load"):
            assert doctor.poll() is None
            time.sleep(0.05)
        doctor.send_signal(signal.SIGINT)
        _, told = doctor.communicate(timeout=120)

    assert doctor.returncode == 130
    assert told.splitlines()[-1] == "error: interrupted"
    with pytest.raises(ProcessLookupError):
        os.kill(core_ml.events("load")[0]["pid"], 0)


def test_the_json_has_no_names_and_no_paths(
    core_ml: StandIn, tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(examination.UNITS, "coreml", ("cpu",))
    monkeypatch.setenv("HOME", "/Users/Ada Lovelace")
    monkeypatch.setenv("LOGNAME", "countess")
    monkeypatch.setattr(platform, "node", lambda: "analytical-engine.local")
    package = tiny_bundle / "fp16" / f"{LOCDIT_STEP}.mlpackage"
    core_ml.fault(
        package=LOCDIT_STEP,
        message=f"Unable to load {package}, "
        "/Users/Ada Lovelace/Library/x.mlmodelc, file:///Users/Ada%20Lovelace/y and "
        "/private/var/folders/zz/T/model.mil of countess on analytical-engine",
    )
    core_ml.fault(package=FEAT_ENCODER, does="abort")

    _, out, _ = doctored(capsys, tiny_bundle, "--precision", "fp16", "--backend", "coreml", "--json")

    for private in (
        "Ada",
        "Lovelace",
        "countess",
        "analytical",
        "/var/",
        "Users",
        str(tiny_bundle),
        getpass.getuser(),
    ):
        assert private not in out, private
    assert str(tiny_bundle.parent) not in out
    assert f"{LOCDIT_STEP}.mlpackage" in out
    assert "model.mil" in out


def test_a_bundle_without_vectors_is_timed_and_not_judged(
    edited: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = edited(lambda files: [files.pop(name) for name in list(files) if name.startswith("vectors/")])
    shutil.rmtree(folder / "vectors")

    code, out, _ = doctored(capsys, folder, "--precision", "fp16", "--json")

    found = json.loads(out)
    assert code == 1
    assert {t["outcome"] for t in found["trials"]} == {"unjudged"}
    assert all(t["call_seconds"] > 0 for t in found["trials"])
    assert (found["chosen"], found["saved"]) == ({}, False)
    assert any("Convert the checkpoint again" in line for line in found["advice"])
    assert not any("No unit is correct" in line for line in found["advice"])


def test_altered_vectors_are_refused_by_name(
    edited: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = edited(lambda files: None)
    path = folder / "vectors" / f"{LOCDIT_STEP}.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)

    code, out, err = doctored(capsys, folder, "--precision", "fp16")

    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert f"{path}: content differs" in err


def test_a_machine_without_a_backend_is_told_what_to_install(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for backend in ("portable", "coreai"):
        monkeypatch.setitem(machine._BACKENDS, backend, ("absent_library",))

    code, out, err = doctored(capsys, tiny_bundle)

    assert code == 2
    assert "coremltools 9" in out
    assert "pip install" in err
    assert err.count("\n") == 1
    assert json.loads(doctored(capsys, tiny_bundle, "--json")[1])["machine"]["backends"] == []


def test_wrong_vectors_lower_what_they_say_is_wrong(bundle: Bundle, edited: Callable[..., Path]) -> None:
    """Rows that a step should have left in a cache, and did not, are seen although its outputs are right."""
    from safetensors.numpy import load_file, save_file

    from voxcpm_constants.manifest import record_file
    from voxcpm_constants.vectors import vectors_path

    folder = edited(lambda files: None)
    path = folder / vectors_path(RESIDUAL_LM_STEP)
    arrays = load_file(path)
    arrays["last_64/state/v_cache_00"][:, :, -1] *= -1
    save_file(arrays, path)
    document = json.loads((folder / "manifest.json").read_text())
    document["files"][str(vectors_path(RESIDUAL_LM_STEP))] = record_file(path).model_dump()
    (folder / "manifest.json").write_text(json.dumps(document))
    changed = open_bundle(folder, "fp32")

    report = examine(changed, "portable", limit=60)

    assert Manifest.read(folder).sizes == bundle.manifest.sizes
    (wrong,) = (t for t in report.trials if t.outcome == "wrong")
    assert wrong.step_model == RESIDUAL_LM_STEP
    assert wrong.agreement is not None
    assert wrong.agreement.state is not None
    assert wrong.agreement.state < 0.99
    assert min(wrong.agreement.streams.values()) > 1 - 1e-6
    assert AUDIO_VAE_ENCODER in report.chosen
