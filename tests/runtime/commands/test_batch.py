"""`batch`: one file per line, voices and options per line, invalid lines and inputs, and resuming."""

import io
import json
import re
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile

from voxcpm_constants.errors import InputError
from voxcpm_constants.file_locks import lock_folder
from voxcpm_runtime.audio.pcm import pcm16
from voxcpm_runtime.commands import batch as commands_batch
from voxcpm_runtime.commands import cli
from voxcpm_runtime.commands.batch_lines import read_lines
from voxcpm_runtime.options import GenerationOptions
from voxcpm_runtime.speech.request import Request
from voxcpm_runtime.voices.store import VoiceStore
from voxcpm_runtime.voxcpm import VoxCPM


def samples(path):
    return soundfile.read(path, dtype="int16")[0]


def speech(bundle, text, *voice, **options):
    return pcm16(VoxCPM.from_bundle(bundle).generate(text, *voice, **options))


def recording(path, seed=0):
    path.parent.mkdir(exist_ok=True)
    soundfile.write(path, np.random.default_rng(seed).uniform(-0.5, 0.5, 100), 1000, subtype="FLOAT")


@pytest.mark.parametrize("ends", ["\n", "\r\n", "\r"])
def test_each_line_of_a_text_becomes_a_file_by_its_number(batch, folder, speaking, ends):
    (folder / "lines.txt").write_bytes(f"\ufeffone.{ends}{ends}two.{ends}  {ends}".encode())
    code, out, err = batch(None, "--seed", "3", name="lines.txt")
    assert (code, err) == (0, "")
    names = sorted(path.name for path in (folder / "out").iterdir())
    assert names == ["output_001.wav", "output_003.wav", "spoken.jsonl"]
    assert out.splitlines()[-1] == "2 spoken, 0 skipped (already there), 0 failed"
    assert out.startswith("out/output_001.wav: ")
    for name, text in zip(names, ("one.", "two."), strict=False):
        np.testing.assert_array_equal(samples(f"out/{name}"), speech(speaking, text, seed=3))


def test_null_unsets_an_option_of_the_command_line(batch, speaking):
    names = ("seed", "cfg_value", "speed", "max_len", "every_word", "markup", "control", "voice", "output")
    code, out, err = batch([{"text": "one.", "seed": 3, **dict.fromkeys(names[1:])}, {"text": "a.", "seed": None}],
                           "--cfg-value", "1", "--speed", "2", "--max-len", "3", "--seed", "3", "--markup")  # fmt: skip
    assert (code, err) == (0, "")
    np.testing.assert_array_equal(samples("out/output_001.wav"), speech(speaking, "one.", seed=3))
    assert not re.search(r"seed 3\b", out.splitlines()[1])


@pytest.mark.parametrize("architecture", ["voxcpm2"], indirect=True)
def test_a_line_has_its_own_voice_seed_options_and_name(batch, folder, speaking):
    """Paths in a line are relative to the JSONL file, paths on the command line to the working directory."""
    recording(folder / "set" / "a.wav", 1)
    recording(folder / "b.wav", 2)
    prompt = {"text": "one.", "prompt": "a.wav", "prompt_text": "so."}
    lines = [
        {"text": "one."},
        {"text": "one.", "output": "low/own.flac", "seed": 4, "reference": "a.wav", "control": "low"},
        {**prompt, "reference": None, "min_len": 5, "cfg_value": 1},
        prompt,
    ]
    options = ("--seed", "3", "--reference", "b.wav", "--max-len", "9")
    code, _, err = batch(lines, *options, name="set/lines.jsonl")
    assert (code, err) == (0, "")
    given = {"seed": 3, "max_len": 9}
    own = speech(speaking, "one.", "set/a.wav", "so.", **given, min_len=5, cfg_value=1.0)
    expected = {
        "output_001.wav": speech(speaking, "one.", None, None, "b.wav", **given),
        "low/own.flac": speech(speaking, "(low)one.", None, None, "set/a.wav", seed=4, max_len=9),
        "output_003.wav": own,
        "output_004.wav": speech(speaking, "one.", "set/a.wav", "so.", "b.wav", **given),
    }
    for name, audio in expected.items():
        np.testing.assert_array_equal(samples(f"out/{name}"), audio, err_msg=name)
    # A line's reference keeps the default prompt.
    options = ("--seed", "3", "--prompt", "b.wav", "--prompt-text", "so.", "--overwrite")
    assert batch([{"text": "one.", "reference": "set/a.wav"}], *options)[0] == 0
    both = speech(speaking, "one.", "b.wav", "so.", "set/a.wav", seed=3)
    np.testing.assert_array_equal(samples("out/output_001.wav"), both)


BAD_LINES = {
    "{bad": "expected a JSON object, but it cannot be read",
    "[1]": "expected a JSON object with at least a text, got '[1]'",
    '{"output": "x.wav"}': "the key 'text' is missing",
    '{"text": 3}': "text: expected a string, got 3",
    '{"text": "a", "prompt": ["b"]}': "prompt: expected a string, got ['b']",
    '{"text": "a", "cfg": 2}': "unknown key 'cfg'; expected some of text, output, seed, prompt",
    '{"text": "a", "cfg_value": "2"}': "cfg_value must be a number from 0 to 10, got '2'",
    '{"text": "a", "seed": -1}': "seed must be",
    '{"text": "a", "prompt": "nowhere.wav", "prompt_text": "b"}': "prompt audio nowhere.wav: no such file",
    '{"text": "a", "prompt_text": "b"}': "got the transcript without the audio",
    '{"text": "a", "min_len": 48, "retry_badcase_ratio_threshold": 99.0}': "53 needed, but the KV cache has 48",
    '{"text": "a", "output": "../x.wav"}': "expected a file name within the output folder, got '../x.wav'",
}


def test_bad_lines_are_reported_by_number_and_the_others_are_spoken(batch, folder):
    code, out, err = batch(['{"text": "one."}', "", *BAD_LINES, '{"text": "two."}'])
    assert code == 1
    assert out.splitlines()[-1] == f"2 spoken, 0 skipped (already there), {len(BAD_LINES)} failed"
    wavs = {path.name for path in (folder / "out").glob("*.wav")}
    assert wavs == {"output_001.wav", f"output_{len(BAD_LINES) + 3:03d}.wav"}
    # Each is reported when it is read or spoken, and again at the end, in order.
    lines, again = err.splitlines()[: len(BAD_LINES)], err.splitlines()[len(BAD_LINES) :]
    assert again == [f"failed: {line}" for line in sorted(lines, key=lambda line: int(line[5:7].strip(":")))]
    for number, (line, message) in enumerate(zip(again, BAD_LINES.values(), strict=True), start=3):
        assert line.startswith(f"failed: line {number}: ")
        assert message in line
    code, out, _ = batch([*BAD_LINES, '{"text": "two."}'], "--json")
    assert code == 1
    document = json.loads(out)
    assert (document["spoken"], document["skipped"], document["left"]) == (1, 0, 0)
    assert [failed["number"] for failed in document["failed"]] == list(range(1, len(BAD_LINES) + 1))


def test_two_lines_with_the_same_output_are_refused_before_any_is_spoken(batch, folder, loads):
    for outputs, lines in (
        (("x.wav", "./x.wav"), "lines 1 and 2"),
        ((None, None, "OUTPUT_002.wav"), "lines 2 and 3"),
        (("\u00e9.wav", "e\u0301.wav"), "lines 1 and 2"),
    ):
        code, out, err = batch([{"text": "a", "output": output} for output in outputs])
        assert (code, out) == (2, "")
        assert err.startswith(f"error: {lines} have the same output, ")
    assert not loads
    assert not (folder / "out").exists()


def test_standard_input_is_text_or_jsonl(batch, folder, monkeypatch):
    for content in (b"one.\n\ntwo.\n", b'{"text": "one.", "output": "a.wav"}\n{"text": "two."}\n'):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content)))
        assert batch(None, name="-")[0] == 0
    names = sorted(path.name for path in (folder / "out").glob("*.wav"))
    assert names == ["a.wav", "output_001.wav", "output_002.wav", "output_003.wav"]


UNUSABLE = [
    (["nowhere.txt"], "nowhere.txt: cannot be read"),
    (["lines.csv"], "lines.csv: expected a name that ends in .txt"),
    (["empty.txt"], "empty.txt: it is empty"),
    (["spoken.jsonl"], "spoken.jsonl: a batch writes its own record under this name"),
    (["lines.txt", "-o", "lines.csv"], "lines.csv: the folder cannot be created"),
    (["lines.txt", "--prompt", "a.wav", "--prompt-text", "b"], "prompt audio a.wav: no such file"),
    ([], "[BUNDLE] INPUT"),
]


@pytest.mark.parametrize("architecture", ["voxcpm"], indirect=True)
@pytest.mark.parametrize(("arguments", "message"), UNUSABLE)
def test_invalid_input_or_option_exits_with_2(bundle_folder, folder, refusal, arguments, message):
    for name in ("lines.txt", "lines.csv"):
        (folder / name).write_text("a\n")
    (folder / "spoken.jsonl").write_text('{"text": "a"}\n')
    (folder / "empty.txt").write_text("\n \n")
    before = sorted(folder.rglob("*"))
    given = [*arguments, *([] if "-o" in arguments else ["-o", "."])]
    assert message in refusal("batch", *([bundle_folder] if arguments else []), *given)
    assert sorted(folder.rglob("*")) == before


def test_suspicious_segment_is_warned_about_and_recorded(batch, folder, network):
    network.stop_bias = np.array([1e3, 0], np.float32)
    _, _, err = batch(["a.", "hello there."], "--no-retry", name="lines.txt")
    record = (folder / "out" / "spoken.jsonl").read_text().splitlines()
    assert [json.loads(line)["suspicious"] for line in record] == [{}, {"1": "cut"}]
    assert err.startswith("line 2: warning: segment 1: the speech was cut off")


def test_cluster_opens_the_bundle_of_a_checkpoint(folder, speaking, monkeypatch):
    (folder / "lines.txt").write_text("one.\n")
    names = []

    def executor(_, name, *__):
        names.append(name)
        return lambda lines, *_: ((line, InputError("not spoken")) for line in lines)

    monkeypatch.setattr(commands_batch, "entry_points", lambda **_: [SimpleNamespace(load=lambda: executor)])
    for named in (["lines.txt", "--model-path", speaking], [speaking, "lines.txt"], ["lines.txt"]):
        assert cli.main(["batch", *named, "-o", "out", "--ray", "local"]) == 1
    assert names == [speaking, speaking, None]


def test_a_line_overrides_fast(tmp_path):
    source = tmp_path / "lines.jsonl"
    for line, steps in (({"inference_timesteps": 10}, 10), ({"fast": False}, 10), ({"seed": 1}, 5)):
        source.write_text(json.dumps({"text": "one.", **line}))
        (read,) = read_lines(str(source), Request(options=GenerationOptions(fast=True)))
        assert read.request.options.inference_timesteps == steps


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


def test_a_line_whose_markup_names_a_changed_voice_is_spoken_again(batch, folder, tts):
    lines = [{"text": '<voice name="ada">one.</voice>', "markup": True}]
    for seed, spoken in ((1, "1 spoken, 0 skipped"), (1, "0 spoken, 1 skipped"), (2, "1 spoken, 0 skipped")):
        recording(folder / "a.wav", seed)
        VoiceStore().add(tts.create_voice("a.wav", "so.", name="ada"), overwrite=True)
        assert batch(lines)[1].splitlines()[-1].startswith(spoken)


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
    path = folder / "out" / "output_001.wav"
    earlier = path.read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", killed_at_rename(renamed=False))
        with pytest.raises(SystemError):
            batch([{"text": "one.", "seed": 2}])
    assert path.read_bytes() == earlier
    assert batch([{"text": "one.", "seed": 2}])[1].splitlines()[-1].startswith("1 spoken, 0 skipped")
    assert path.read_bytes() != earlier


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
