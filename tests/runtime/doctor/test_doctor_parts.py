"""The parts of the doctor that need no bundle: agreement, anonymity, the saved choice, Core ML's plan, advice."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from voxcpm_constants.macos import MacOS
from voxcpm_runtime.backends.core_ml import measured_units as saved
from voxcpm_runtime.backends.machine import chip
from voxcpm_runtime.doctor import children
from voxcpm_runtime.doctor.agreement import FLOORS, Agreement, correlation, lowest_correlation
from voxcpm_runtime.doctor.anonymous import anonymous
from voxcpm_runtime.doctor.endurance import Endurance
from voxcpm_runtime.doctor.report import Described, Machine, Report
from voxcpm_runtime.doctor.systems import known_crash
from voxcpm_runtime.doctor.trials import Trial, fastest_correct
from voxcpm_runtime.doctor.worker import Request


def test_correlation_sees_an_angle_a_scale_and_an_offset():
    r = np.array([1.0, -1.0, 1.0, -1.0])

    assert correlation(r, r) == 1
    assert correlation(-r, r) == -1
    assert correlation(np.array([1.0, 1.0, 1.0, 1.0]), r) == 0
    # 2·2 / (4 + 1)
    assert correlation(2 * r, r) == pytest.approx(0.8)
    # 2⟨v, r⟩ / (|v|² + |r|²) with v = r + 1: 2·4 / (8 + 4)
    assert correlation(r + 1, r) == pytest.approx(2 / 3)
    assert correlation(0 * r, 0 * r) == 1


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_correlation_of_what_is_not_finite_or_of_another_shape_is_zero(bad):
    r = np.ones(3)

    assert correlation(np.array([1.0, bad, 1.0]), r) == 0
    assert correlation(np.ones((1, 3)), r) == 0


def test_large_values_do_not_overflow():
    assert correlation(np.full(4, 6e4, np.float16), np.full(4, 6e4, np.float32)) == pytest.approx(1, abs=1e-3)


def test_the_worst_tensor_counts():
    expected = {"a": np.ones(2), "b": np.array([1.0, -1.0])}

    assert lowest_correlation({"a": np.ones(2), "b": np.array([-1.0, 1.0]), "c": np.zeros(1)}, expected) == -1


def agreement(**changed):
    return Agreement(**{"streams": {"chain": 1.0, "last_1": 1.0}, "chain": (1.0,), "state": 1.0, **changed})


@pytest.mark.parametrize("changed", [{"streams": {"chain": 1.0, "last_1": 0.5}}, {"state": 0.5}])
@pytest.mark.parametrize("precision", FLOORS)
def test_one_bad_stream_or_state_makes_a_unit_wrong(changed, precision):
    assert agreement().correct(precision)
    assert agreement(state=None).correct(precision)
    assert not agreement(**changed).correct(precision)


def trial(name, unit, seconds, outcome="correct"):
    return Trial(step_model=name, unit=unit, outcome=outcome, call_seconds=seconds)


def test_the_fastest_correct_unit_is_chosen_and_the_portable_backend_only_in_need():
    found = [
        trial("a", "cpu", 3.0),
        trial("a", "all", 2.0),
        trial("a", "cpu_and_ne", 1.0, "wrong"),
        trial("a", "portable", 0.5),
        trial("b", "cpu", None, "crashed"),
        trial("b", "portable", 0.5),
        trial("c", "cpu", None, "hung"),
    ]

    assert {name: t.unit for name, t in fastest_correct(found).items()} == {"a": "all", "b": "portable"}


def report(*found, backends=("portable",), judged=True):
    machine = Machine(
        system="",
        build="",
        chip="",
        architecture="",
        processors=1,
        python="",
        libraries={},
        backends=backends,
    )
    bundle = Described(
        generation="voxcpm",
        precision="fp16",
        target="macOS14",
        batch=1,
        kv_length=8,
        digest="",
        judged=judged,
    )
    names = tuple(dict.fromkeys(t.step_model for t in found))
    return Report(machine=machine, bundle=bundle, floor=0.9, step_models=names, trials=found)


def test_the_advice_says_what_to_use():
    native, portable = trial("a", "cpu", 1.0), trial("b", "portable", 1.0)

    assert report(native).advice() == [
        "Every step model is correct somewhere. What --compute-units auto uses has a star."
    ]
    assert report(portable).advice() == ["Every step model is correct on the portable backend."]
    assert report(native, portable).advice()[1:] == ["Only the portable backend is correct for b."]


def test_the_advice_says_what_failed_and_what_to_do():
    found = [trial("a", "cpu", None, "hung"), trial("a", "all", None, "hung"), trial("b", "cpu", 1.0)]

    lost, install, hung, slow = report(*found, backends=("coreml",)).advice()

    assert lost.startswith("No unit is correct for a. ")
    assert "--json" in lost
    assert "pip install" in install
    assert hung == "a does not answer in time on cpu, all."
    assert "--timeout" in slow
    assert not any("pip install" in line for line in report(*found).advice())


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VOXCPM_COREML_CACHE", str(tmp_path))
    return tmp_path


def test_a_choice_is_saved_for_this_chip_this_build_and_this_bundle(cache, monkeypatch):
    path = saved.save_measured_units("digest", {"a": "cpu"})

    assert path.parent == cache / "measured"
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    assert saved.measured_units("digest") == {"a": "cpu"}
    assert saved.measured_units("another") == {}
    for question, answer in (("build", "24F75"), ("chip", "Apple M9")):
        with monkeypatch.context() as patched:
            patched.setattr(saved, question, lambda answer=answer: answer)
            assert saved.measured_units("digest") == {}
    saved.save_measured_units("digest", {"a": "all"})
    assert saved.measured_units("digest") == {"a": "all"}


@pytest.mark.parametrize("content", ["", "{", "[]", '{"units": [1]}', '{"units": {"a": 1}}', "{}"])
@pytest.mark.usefixtures("cache")
def test_a_damaged_choice_counts_as_none(content):
    path = saved.save_measured_units("digest", {"a": "cpu"})
    path.write_text(content)

    assert saved.measured_units("digest") == {}


def test_a_child_that_never_starts_is_given_its_limit_and_the_time_to_start(tmp_path, monkeypatch):
    (tmp_path / "asleep.py").write_text("import time\ntime.sleep(60)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(children, "_PROGRAM", "asleep")
    monkeypatch.setattr(children, "_START_SECONDS", 0.25)
    request = Request(
        task="trial", bundle="", precision="fp16", unit="cpu", step_models=("a",), limit=0.5, judged=False
    )

    assert children.run_child(request, print) == ("hung", "did not start within 0.75 s")


def test_the_chip_has_a_name():
    assert chip().strip()


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("cannot open /Users/ada/b/fp16/x.mlpackage.", "cannot open …/x.mlpackage."),
        ("file:///private/var/folders/a/b/model.mil: bad", "…/model.mil: bad"),
        ("in '~/voices/ada.voice'", "in '…/ada.voice'"),
        ("/home/ada kept", "…/ada kept"),
        ("2 m/s, and/or 3/4", "2 m/s, and/or 3/4"),
        ("ios17.cast: x", "ios17.cast: x"),
    ],
)
def test_of_a_path_the_last_part_is_left(text, left, monkeypatch):
    monkeypatch.setattr("getpass.getuser", lambda: "nobody-here")

    assert anonymous({"advice": [text, 1, None]}, []) == {"advice": [left, 1, None]}


def cleaned(text, *folders):
    return anonymous({"message": text}, folders)["message"]


def test_names_are_removed_as_whole_words(monkeypatch):
    monkeypatch.setattr("getpass.getuser", lambda: "ada")
    monkeypatch.setattr("platform.node", lambda: "engine.local")

    assert cleaned("ada on engine.local, engine; adapter") == "… on …, …; adapter"


def test_words_of_our_own_are_no_names(monkeypatch):
    monkeypatch.setattr("getpass.getuser", lambda: "cpu")
    monkeypatch.setattr("platform.node", lambda: "portable")
    trials = {"trials": [{"unit": "cpu", "message": "refused for cpu"}], "backends": ["portable"]}

    assert anonymous(trials, []) == {
        "trials": [{"unit": "cpu", "message": "refused for …"}],
        "backends": ["portable"],
    }


def test_a_user_without_a_name_and_a_home_has_a_report_too(monkeypatch, tmp_path):
    import pwd

    def unknown(*_):
        raise KeyError("getpwuid(): uid not found")

    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME", "HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.setenv("VOXCPM_COREML_CACHE", str(tmp_path))

    assert cleaned("in /Users/ada/x.mlpackage") == "in …/x.mlpackage"


@pytest.mark.parametrize("which", ["cache", "temporary", "installation"])
def test_folders_of_the_user_with_spaces_are_removed_as_a_whole(which, tmp_path, monkeypatch):
    folder = tmp_path / "Ada Lovelace" / which
    if which == "cache":
        monkeypatch.setenv("VOXCPM_COREML_CACHE", str(folder))
    elif which == "temporary":
        monkeypatch.setattr("tempfile.gettempdir", lambda: str(folder))
    else:
        monkeypatch.setattr("sys.prefix", str(folder))

    assert cleaned(f"in {folder}/model.mil") == "in …/model.mil"


def test_folders_with_spaces_are_removed_as_a_whole():
    folder = Path("/Volumes/My Disk/my bundle")

    left = cleaned(f"{folder}/fp16/x.mlpackage and file:///Volumes/My%20Disk/my%20bundle/y", folder)

    assert "My" not in left
    assert left.startswith("…/fp16/x.mlpackage and ")


@pytest.mark.parametrize(
    ("version", "source"),
    [
        ((14, 8, 7), "878"),
        ((15, 7), None),
        ((26, 3), None),
        ((26, 4, 1), "587"),
        ((26, 5), "587"),
        ((26, 6), None),
        ((27, 0), None),
        (None, None),
    ],
)
def test_a_system_with_known_crashes_is_named_with_its_source(version, source):
    said = known_crash(version and MacOS(version, ""))

    assert bool(said) == (source is not None)
    assert source is None or source in said


def test_the_advice_says_what_lasted_and_what_did_not():
    units = {"audio_vae_decoder": "cpu"}
    crash = {"outcome": "crashed", "step_model": "audio_vae_decoder", "message": "SIGSEGV"}
    ended = Endurance(precision="fp16", units=units, seconds=90.0, **crash)
    lasted = Endurance(precision="fp16", units={"audio_vae_decoder": "all"}, seconds=600.0, outcome="done")
    found = report(trial("audio_vae_decoder", "cpu", 1.0), trial("audio_vae_decoder", "all", 2.0))

    after = found.model_copy(update={"endurance": (ended, lasted)})

    assert (found.chosen["audio_vae_decoder"].unit, after.chosen["audio_vae_decoder"].unit) == ("cpu", "all")
    assert after.advice()[:3] == [
        "The chosen units did not last: audio_vae_decoder ends the process on cpu after 1.5 minutes: SIGSEGV",
        "The chosen units lasted 10.0 minutes: audio_vae_decoder on all.",
        "An fp32 AudioVAE may last on the CPU: convert again with --audio-vae-fp32.",
    ]
    known = found.model_copy(update={"known_crash": "macOS 26.4: …"}).advice()
    assert known[0] == "Known of macOS 26.4: …."
    assert "--minutes" in known[1]


def test_what_is_saved_names_no_folder(cache):
    document = json.loads(saved.save_measured_units("digest", {"a": "cpu"}).read_text())

    assert set(document) == {"chip", "build", "bundle", "units"}
    assert str(cache) not in json.dumps(document)
