"""`batch`: one file per line, voices and options per line, invalid lines and inputs."""

import io
import json
import re
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile

from voxcpm_constants.errors import InputError
from voxcpm_runtime.commands import batch as commands_batch
from voxcpm_runtime.commands import cli
from voxcpm_runtime.commands.batch_lines import read_lines
from voxcpm_runtime.options import GenerationOptions
from voxcpm_runtime.speech.request import Request
from voxcpm_runtime.voxcpm import VoxCPM


def record(folder):
    return [json.loads(line) for line in (folder / "out" / "spoken.jsonl").read_text().splitlines()]


def samples(path):
    return soundfile.read(path, dtype="int16")[0]


def speech(bundle, text, *voice, **options):
    return np.round(np.clip(VoxCPM.from_bundle(bundle).generate(text, *voice, **options), -1, 1) * 32767)


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
    np.testing.assert_array_equal(samples("out/output_003.wav"), speech(speaking, "two.", seed=3))
    assert out.splitlines()[-1] == "2 spoken, 0 skipped (already there), 0 failed"
    assert out.startswith("out/output_001.wav: ")
    np.testing.assert_array_equal(samples("out/output_001.wav"), speech(speaking, "one.", seed=3))


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
    for lines, message in (
        ([{"text": "a", "output": "x.wav"}, {"text": "b", "output": "./x.wav"}], "lines 1 and 2"),
        ([{"text": "a"}, {"text": "b"}, {"text": "c", "output": "OUTPUT_002.wav"}], "lines 2 and 3"),
        ([{"text": "a", "output": "\u00e9.wav"}, {"text": "b", "output": "e\u0301.wav"}], "lines 1 and 2"),
    ):
        code, out, err = batch(lines)
        assert (code, out) == (2, "")
        assert err.startswith(f"error: {message} have the same output, ")
    assert not loads
    assert not (folder / "out").exists()


@pytest.mark.parametrize(
    ("content", "names"),
    [
        (b"one.\n\ntwo.\n", ["output_001.wav", "output_003.wav"]),
        (b'{"text": "one.", "output": "a.wav"}\n{"text": "two."}\n', ["a.wav", "output_002.wav"]),
    ],
)
def test_standard_input_is_text_or_jsonl(batch, folder, monkeypatch, content, names):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content)))
    assert batch(None, name="-")[0] == 0
    assert sorted(path.name for path in (folder / "out").glob("*.wav")) == names


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
    assert [line["suspicious"] for line in record(folder)] == [{}, {"1": "cut"}]
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


@pytest.mark.parametrize(
    ("line", "steps"), [({"inference_timesteps": 10}, 10), ({"fast": False}, 10), ({"seed": 1}, 5)]
)
def test_a_line_overrides_fast(tmp_path, line, steps):
    source = tmp_path / "lines.jsonl"
    source.write_text(json.dumps({"text": "one.", **line}))
    (read,) = read_lines(str(source), Request(options=GenerationOptions(fast=True)))
    assert read.request.options.inference_timesteps == steps
