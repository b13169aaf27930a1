from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from voxcpm_runtime.backends.core_ml import compute_units as saved
from voxcpm_runtime.doctor.report import DoctorReport
from voxcpm_runtime.doctor.trials import Endurance, Trial
from voxcpm_runtime.doctor.worker import correlation


def test_correlation_depends_on_angle_scale_and_offset():
    r = np.array([1.0, -1.0, 1.0, -1.0])
    assert correlation(r, r) == 1
    assert correlation(-r, r) == -1
    assert correlation(np.array([1.0, 1.0, 1.0, 1.0]), r) == 0
    # 2·2 / (4 + 1)
    assert correlation(2 * r, r) == pytest.approx(0.8)
    # 2⟨v, r⟩ / (|v|² + |r|²) with v = r + 1: 2·4 / (8 + 4)
    assert correlation(r + 1, r) == pytest.approx(2 / 3)
    assert correlation(0 * r, 0 * r) == 1
    assert correlation(r * np.nan, r) == 0


def trial(name, unit, seconds, outcome="correct"):
    return Trial(step_model=name, unit=unit, outcome=outcome, call_seconds=seconds)


def report(*found, **more):
    manifest = SimpleNamespace(
        step_models=dict.fromkeys(t.step_model for t in found),
        audio_vae_fp32=False,
        target="macOS14",
        vector_files=lambda: ["a file"],
        architecture=SimpleNamespace(generation="voxcpm2"),
        sizes=SimpleNamespace(kv_length=512),
    )
    bundle = SimpleNamespace(precision="fp16", manifest=manifest, digest="d", folder=Path("/my own/bundle"))
    return DoctorReport(bundle, found, **more)


def test_the_json_for_an_issue_names_no_path_user_or_host(monkeypatch):
    monkeypatch.setattr("getpass.getuser", lambda: "countess")
    monkeypatch.setattr("platform.node", lambda: "engine.local")
    monkeypatch.setenv("HOME", "/Users/Ada Lovelace")
    said = (
        "SIGSEGV: countess@engine: /my own/bundle, /Users/Ada Lovelace/Library/x.mil, "
        "file:///Users/Ada%20Lovelace/y and /private/var/T/model.mil"
    )
    failed = trial("a", "cpu", None, "crashed").model_copy(update={"message": said})
    lost = Endurance(units={"a": "cpu"}, seconds=60.0, outcome="crashed", step_model="a", message=said)
    document = report(failed, refusal=said, endurance=(lost,)).document(saved=False)
    clean = "SIGSEGV: …@…: …, …/Library/x.mil, …/y and …/model.mil"
    assert document["trials"][0]["message"] == document["endurance"][0]["message"] == clean
    assert document["refusal"] == clean
    assert any(line.endswith(clean) for line in document["advice"])
    for private in ("countess", "engine", "Ada", "Lovelace", "my own", "/var/", "Users"):
        assert private not in str(document)


def test_advice_on_what_failed_and_on_a_missing_compiler(monkeypatch):
    found = [trial("a", "cpu", None, "hung"), trial("a", "all", None, "hung"), trial("b", "cpu", 1.0)]
    assert not any("pip install" in line for line in report(*found).advice())
    with monkeypatch.context() as patched:
        patched.setattr("voxcpm_runtime.doctor.report.backends", lambda: ("coreml",))
        lost, install, hung, slow = report(*found).advice()
    assert lost.startswith("No unit is correct for a. ")
    for remedy, line in (("--json", lost), ("pip install", install), ("--timeout", slow)):
        assert remedy in line
    assert hung == "a times out on cpu, all."
    pytest.importorskip("voxcpm_runtime.backends.portable.kernels")
    monkeypatch.setattr("voxcpm_runtime.backends.portable.kernels.cpu_features", lambda: ("AVX-512", "VNNI"))
    found = report(trial("a", "portable", 1.0), trial("b", "portable", 1.0))
    for compiler, advised in (("no-such-compiler", True), ("true", False)):
        monkeypatch.setenv("CXX", compiler)
        assert any("apt install g++" in line for line in found.advice()) == advised


def test_advice_on_what_lasted():
    crash = {"outcome": "crashed", "step_model": "audio_vae_decoder", "message": "SIGSEGV"}
    ended = Endurance(units={"audio_vae_decoder": "cpu"}, seconds=90.0, **crash)
    lasted = Endurance(units={"audio_vae_decoder": "all"}, seconds=600.0, outcome="done")
    trials = trial("audio_vae_decoder", "cpu", 1.0), trial("audio_vae_decoder", "all", 2.0)
    found, after = report(*trials), report(*trials, endurance=(ended, lasted))
    assert (found.chosen["audio_vae_decoder"].unit, after.chosen["audio_vae_decoder"].unit) == ("cpu", "all")
    failed, remedy, ran = list(after.advice())[:3]
    assert "audio_vae_decoder crashes on cpu after 1.5 minutes: SIGSEGV" in failed
    assert "convert again with --audio-vae-fp32" in remedy
    assert "ran for 10.0 minutes without failure: audio_vae_decoder on all." in ran


def test_choice_is_saved_per_chip_build_and_bundle(tmp_path, monkeypatch):
    monkeypatch.setenv("VOXCPM_COREML_CACHE", str(tmp_path))
    path = saved.save_measured_units("digest", {"a": "cpu"})
    assert path.parent == tmp_path / "measured"
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    assert saved.measured_units("digest") == {"a": "cpu"}
    assert saved.measured_units("another") == {}
    for question, answer in (("build", "24F75"), ("chip", "Apple M9")):
        with monkeypatch.context() as patched:
            patched.setattr(saved, question, lambda answer=answer: answer)
            assert saved.measured_units("digest") == {}
    saved.save_measured_units("digest", {"a": "all"})
    assert saved.measured_units("digest") == {"a": "all"}
    for damaged in ("", "[]", '{"units": {"a": 1}}'):
        path.write_text(damaged)
        assert saved.measured_units("digest") == {}
