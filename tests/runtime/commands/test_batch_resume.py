"""Resuming a batch with existing, missing and changed files."""

import signal
from pathlib import Path

import numpy as np
import pytest
import soundfile

from voxcpm_constants.file_locks import lock_folder


def recording(path, seed):
    soundfile.write(path, np.random.default_rng(seed).uniform(-0.5, 0.5, 100), 1000, subtype="FLOAT")


def test_second_run_retries_failed_missing_and_changed_lines(batch, folder):
    recording(folder / "a.wav", 1)
    lines = [{"text": "one."}, {"text": "two."}, {"text": "three."}, {"text": "four.", "cfg_value": 20}]
    lines += [{"text": "five.", "prompt": "a.wav", "prompt_text": "so."}]
    batch(lines)
    before = {path.name: path.read_bytes() for path in (folder / "out").glob("*.wav")}
    (folder / "out" / "output_002.wav").unlink()
    lines[2]["text"], lines[3]["cfg_value"] = "other.", 2
    recording(folder / "a.wav", 2)
    code, out, err = batch(lines)
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == "4 spoken, 1 skipped (already there), 0 failed"
    assert (folder / "out" / "output_001.wav").read_bytes() == before["output_001.wav"]
    for changed in ("output_003.wav", "output_005.wav"):
        assert (folder / "out" / changed).read_bytes() != before[changed]
    assert batch(lines)[1].startswith("0 spoken, 5 skipped")


@pytest.mark.parametrize("options", [["--seed", "9"], ["--cfg-value", "1.5"], ["--precision", "fp16"]])
def test_file_made_with_other_arguments_is_regenerated(batch, options):
    batch(["one."], name="lines.txt")
    assert batch(None, *options, name="lines.txt")[1].splitlines()[-1].startswith("1 spoken")
    assert batch(None, *options, name="lines.txt")[1].startswith("0 spoken, 1 skipped")


def test_unrecorded_file_is_preserved(batch, folder):
    (folder / "out").mkdir()
    mine = folder / "out" / "output_001.wav"
    mine.write_bytes(b"mine")
    code, out, err = batch(["one.", "two."], name="lines.txt")
    assert code == 1
    assert "line 1: out/output_001.wav exists but is not in spoken.jsonl" in err
    assert mine.read_bytes() == b"mine"
    assert out.splitlines()[-1].startswith("1 spoken, 0 skipped (already there), 1 failed")
    assert batch(None, "--overwrite", name="lines.txt")[0] == 0


def test_a_damaged_or_incomplete_record_is_continued(batch, folder):
    batch(["one.", "two."], name="lines.txt")
    path = folder / "out" / "spoken.jsonl"
    path.write_bytes(
        b'garbage\n[1]\n{}\n{"output": "a", "timestamps": 3}\n' + path.read_bytes() + b'{"line": 3, "outp'
    )
    code, out, _ = batch(["one.", "two.", "three."], name="lines.txt")
    assert (code, out.splitlines()[-1]) == (0, "1 spoken, 2 skipped (already there), 0 failed")
    assert batch(None, name="lines.txt")[1].startswith("0 spoken, 3 skipped")


def test_ctrl_c_keeps_finished_files(batch, folder, models):
    """Interrupted in the third utterance, the same command then speaks it and the fourth."""
    velocity = models["locdit_step"].function

    def interrupted(inputs, state):
        if len(list((folder / "out").glob("*.wav"))) == 2:
            signal.raise_signal(signal.SIGINT)
            models["locdit_step"].function = velocity
        return velocity(inputs, state)

    models["locdit_step"].function = interrupted
    code, out, err = batch(["one.", "two.", "three.", "four."], name="lines.txt")
    models["locdit_step"].function = velocity
    assert (code, err) == (130, "error: interrupted\n")
    resumes = "2 left: run the same command to resume"
    assert out.splitlines()[-1] == f"2 spoken, 0 skipped (already there), 0 failed, {resumes}"
    assert len(list((folder / "out").iterdir())) == 3
    assert batch(None, name="lines.txt")[1].splitlines()[-1].startswith("2 spoken, 2 skipped")


@pytest.mark.parametrize(("renamed", "skipped"), [(False, 0), (True, 1)])
def test_run_killed_around_a_rename_resumes(batch, folder, monkeypatch, renamed, skipped):
    """Every file has a record, and none is spoken twice."""
    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", killed_at_rename(renamed=renamed))
        with pytest.raises(SystemError):
            batch(["one.", "two."], name="lines.txt")
    assert (folder / "out" / "output_001.wav").exists() == renamed
    code, out, err = batch(None, name="lines.txt")
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == f"{2 - skipped} spoken, {skipped} skipped (already there), 0 failed"


def test_old_file_is_not_mistaken_for_a_recorded_unrenamed_one(batch, folder, monkeypatch):
    """Both have the same size; the old one has another seed."""
    batch([{"text": "one.", "seed": 1}])
    earlier = (folder / "out" / "output_001.wav").read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", killed_at_rename(renamed=False))
        with pytest.raises(SystemError):
            batch([{"text": "one.", "seed": 2}])
    assert (folder / "out" / "output_001.wav").read_bytes() == earlier
    assert batch([{"text": "one.", "seed": 2}])[1].splitlines()[-1].startswith("1 spoken, 0 skipped")
    assert (folder / "out" / "output_001.wav").read_bytes() != earlier


def killed_at_rename(*, renamed):
    """A rename that kills the process where an audio file would appear."""
    replace = Path.replace

    def killed(path, target):
        if target.suffix != ".wav" or renamed:
            replace(path, target)
        if target.suffix == ".wav":
            raise SystemError("killed")

    return killed


def test_second_batch_into_a_folder_is_rejected(batch, folder, loads):
    (folder / "out").mkdir()
    lock = lock_folder(folder / "out")
    code, out, err = batch(["one."], name="lines.txt")
    assert (code, out, loads) == (2, "", [])
    assert "another batch is writing into this folder" in err.splitlines()[-1]
    assert not any((folder / "out").iterdir())
    lock.release()
    assert batch(None, name="lines.txt")[0] == 0
    # Each run releases the folder.
    assert batch(None, name="lines.txt")[1].startswith("0 spoken, 1 skipped")
