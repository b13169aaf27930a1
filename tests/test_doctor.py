"""The doctor's trials: on the portable backend, and on Core ML's stand-in with everything that can go wrong."""

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
from typing import TYPE_CHECKING, Any

import pytest

from voxcpm_constants.manifest import Manifest
from voxcpm_constants.step_models import (
    AUDIO_VAE_DECODER,
    AUDIO_VAE_ENCODER,
    FEAT_ENCODER,
    LOCDIT_SOLVE,
    LOCDIT_STEP,
    RESIDUAL_LM_STEP,
    STEP_MODEL_NAMES,
)
from voxcpm_runtime.backends import machine
from voxcpm_runtime.backends.measured_units import measured_units
from voxcpm_runtime.bundle.opening import Bundle, open_bundle
from voxcpm_runtime.commands import cli
from voxcpm_runtime.doctor import examination
from voxcpm_runtime.doctor import trials as trials_module
from voxcpm_runtime.doctor.children import Ending
from voxcpm_runtime.doctor.examination import examine
from voxcpm_runtime.doctor.trials import Trial, trials
from voxcpm_runtime.doctor.worker import Event, Request

if TYPE_CHECKING:
    from coreml_stand_in.installation import StandIn

# A child has a minute more to start.
LIMIT = 8.0


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOXCPM_COREML_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def bundle(tiny_bundle: Path) -> Bundle:
    return open_bundle(tiny_bundle, "fp16")


def tried(bundle: Bundle, *names: str, unit: str = "cpu_and_ne", limit: float = 60.0) -> list[Trial]:
    return trials(bundle, unit, names, limit=limit, begun=lambda name, unit: None)


def doctored(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = cli.main(["doctor", *map(str, arguments)])
    told = capsys.readouterr()
    return code, told.out, told.err


@pytest.fixture
def edited(tiny_bundle: Path, tmp_path: Path) -> Callable[[Callable[[dict[str, Any]], object]], Path]:
    """edited(change): a copy of the tiny bundle after change(files of the manifest)."""

    def edit(change: Callable[[dict[str, Any]], object]) -> Path:
        folder = tmp_path / "bundle"
        shutil.copytree(tiny_bundle, folder)
        document = json.loads((folder / "manifest.json").read_text())
        change(document["files"])
        (folder / "manifest.json").write_text(json.dumps(document))
        return folder

    return edit


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


def test_several_utterances_are_tried_together(tiny_batch_bundle: Path) -> None:
    found = tried(open_bundle(tiny_batch_bundle, "fp32"), FEAT_ENCODER, RESIDUAL_LM_STEP, unit="portable")

    assert [t.agreement is not None and t.agreement.worst > 1 - 1e-6 for t in found] == [True, True]


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


@pytest.mark.parametrize(("does", "word"), [("abort", "SIGABRT"), ("kill", "SIGKILL")])
@pytest.mark.parametrize(("at", "stage"), [("load", "load"), ("predict", "check")])
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
    began = time.monotonic()

    hung, correct = tried(bundle, LOCDIT_STEP, FEAT_ENCODER, limit=LIMIT)

    assert (hung.outcome, hung.stage, correct.outcome) == ("hung", "load", "correct")
    assert time.monotonic() - began < 60
    (pid,) = {event["pid"] for event in core_ml.events("load") if event["package"] == LOCDIT_STEP}
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


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


def test_every_correct_trial_on_core_ml_has_its_plan_or_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child process that made plans crashed at the second step model; another goes on behind it."""
    found = [Trial(step_model=name, unit="cpu", outcome="correct") for name in ("a", "b", "c")]
    found += [Trial(step_model="a", unit="all", outcome="wrong")]
    found += [Trial(step_model="a", unit="portable", outcome="correct")]
    asked = []

    def run_child(request: Request, heard: Callable[[Event], None]) -> Ending:
        asked.append((request.task, request.unit, request.step_models))
        for name in request.step_models:
            heard({"step_model": name, "stage": "load"})
            if name == "b":
                return Ending("crashed", "SIGABRT")
            heard({"step_model": name, "stage": "done", "operations": {"ne": 3}})
        return Ending("done")

    monkeypatch.setattr(trials_module, "run_child", run_child)
    monkeypatch.setattr(
        trials_module,
        "_request",
        lambda bundle, task, unit, names, limit: Request(
            task=task, bundle="", precision="fp16", unit=unit, step_models=names, limit=limit, judged=True
        ),
    )

    plans = [(t.operations, t.no_plan) for t in trials_module.placed(None, found, limit=1.0)]  # type: ignore[arg-type]

    assert asked == [("placement", "cpu", ("a", "b", "c")), ("placement", "cpu", ("c",))]
    assert plans == [({"ne": 3}, ""), (None, "SIGABRT"), ({"ne": 3}, ""), (None, ""), (None, "")]


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
        _, told = doctor.communicate(timeout=20)

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
    monkeypatch.setitem(machine._BACKENDS, "portable", ("absent_library",))

    code, out, err = doctored(capsys, tiny_bundle)

    assert code == 2
    assert "coremltools 9" in out
    assert "pip install" in err
    assert err.count("\n") == 1
    assert json.loads(doctored(capsys, tiny_bundle, "--json")[1])["machine"]["backends"] == []


def test_a_choice_that_cannot_be_saved_is_one_warning(
    core_ml: StandIn,  # noqa: ARG001 - a Mac
    tiny_bundle: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(examination.UNITS, "coreml", ("cpu",))
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "measured").write_text("in the way")

    code, out, err = doctored(capsys, tiny_bundle, "--precision", "fp16", "--backend", "coreml")

    assert code == 0
    assert "Every step model is correct" in out
    assert err.count("\n") == 1
    assert err.startswith("warning: the choice cannot be saved")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--backend", "gpu"], "backend must be one of auto, coreml, portable"),
        (["--backend", "coreml"], "needs macOS"),
        (["--precision", "fp8"], "precision must be one of"),
        (["--timeout", "0"], "timeout"),
        (["--timeout", "nan"], "timeout"),
    ],
)
def test_wrong_arguments_are_one_line(
    tiny_bundle: Path, arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = doctored(capsys, tiny_bundle, *arguments)

    assert (code, out) == (2, "")
    assert told in err
    assert err.count("\n") == 1


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
