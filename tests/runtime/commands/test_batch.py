import io
import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile

from voxcpm_runtime.commands import cli
from voxcpm_runtime.voxcpm import VoxCPM

second_generation = pytest.mark.parametrize("architecture", ["voxcpm2"], indirect=True)


def record(folder):
    return [json.loads(line) for line in (folder / "out" / "spoken.jsonl").read_text().splitlines()]


def samples(path):
    return soundfile.read(path, dtype="int16")[0]


def speech(bundle, text, *voice, **options):
    return np.round(np.clip(VoxCPM.from_bundle(bundle).generate(text, *voice, **options), -1, 1) * 32767)


def recording(path, seed=0):
    path.parent.mkdir(exist_ok=True)
    soundfile.write(path, np.random.default_rng(seed).uniform(-0.5, 0.5, 100), 1000, subtype="FLOAT")


def test_each_line_of_a_text_becomes_a_file_by_its_number(batch, folder, speaking):
    code, out, err = batch(["one.", "", "two.", "  "], "--seed", "3", name="lines.txt")

    assert (code, err) == (0, "")
    assert sorted(path.name for path in (folder / "out").iterdir()) == [
        "output_001.wav",
        "output_003.wav",
        "spoken.jsonl",
    ]
    np.testing.assert_array_equal(samples("out/output_003.wav"), speech(speaking, "two.", seed=3))
    assert out.splitlines()[-1] == "2 spoken, 0 skipped (already there), 0 failed"
    assert out.startswith("out/output_001.wav: ")


def test_a_line_without_a_seed_gets_a_fresh_one_that_is_recorded(batch, folder, speaking):
    batch(["one.", "one."], name="lines.txt")

    first, second = record(folder)
    assert first["seed"] != second["seed"]
    audio = samples("out/output_001.wav")
    np.testing.assert_array_equal(audio, speech(speaking, "one.", seed=first["seed"]))
    assert (first["line"], first["output"], first["samples"]) == (1, "output_001.wav", len(audio))
    assert first["seconds"] == pytest.approx(
        len(audio) / soundfile.info("out/output_001.wav").samplerate, abs=1e-3
    )


@second_generation
def test_a_line_has_its_own_voice_seed_options_and_name(batch, folder, speaking):
    """Paths in a line are relative to the JSONL file, paths on the command line to the working directory."""
    recording(folder / "set" / "a.wav", 1)
    recording(folder / "b.wav", 2)
    lines = [
        {"text": "one."},
        {"text": "one.", "output": "low/own.flac", "seed": 4, "reference": "a.wav", "control": "low"},
        {
            "text": "one.",
            "prompt": "a.wav",
            "prompt_text": "so.",
            "reference": None,
            "min_len": 5,
            "cfg_value": 1,
        },
    ]

    code, _, err = batch(
        lines, "--seed", "3", "--reference", "b.wav", "--max-len", "9", name="set/lines.jsonl"
    )

    assert (code, err) == (0, "")
    expected = {
        "output_001.wav": speech(speaking, "one.", None, None, "b.wav", seed=3, max_len=9),
        "low/own.flac": speech(speaking, "(low)one.", None, None, "set/a.wav", seed=4, max_len=9),
        "output_003.wav": speech(
            speaking, "one.", "set/a.wav", "so.", seed=3, max_len=9, min_len=5, cfg_value=1.0
        ),
    }
    for name, audio in expected.items():
        np.testing.assert_array_equal(samples(f"out/{name}"), audio, err_msg=name)


BAD_LINES = {
    "{bad": "expected a JSON object, but it cannot be read",
    "[1]": "expected a JSON object with at least a text, got '[1]'",
    '{"output": "x.wav"}': "the key 'text' is missing",
    '{"text": ""}': "the text is empty",
    '{"text": 3}': "text: input should be a valid string, got 3",
    '{"text": "a", "cfg": 2}': "unknown key 'cfg'; expected some of text, output, seed, prompt",
    '{"text": "a", "cfg_value": "2"}': "cfg_value: input should be a valid number, got '2'",
    '{"text": "a", "cfg_value": 20}': "cfg_value must be a number from 0 to 10, got 20",
    '{"text": "a", "prompt": "nowhere.wav", "prompt_text": "b"}': "prompt audio nowhere.wav: no such file",
    '{"text": "a", "prompt_text": "b"}': "got the transcript without the audio",
    '{"text": "a", "min_len": 48, "retry_badcase_ratio_threshold": 99.0}': "53 needed, but the KV cache has 48",
    '{"text": "a", "output": "../x.wav"}': "expected a file name within the output folder, got '../x.wav'",
    '{"text": "a", "output": "x.txt"}': "output: expected a name that ends in .wav",
}


@pytest.mark.parametrize("bad", BAD_LINES, ids=lambda line: line[:40])
def test_a_bad_line_is_told_by_its_number_and_the_rest_goes_on(batch, folder, bad):
    code, out, err = batch(['{"text": "one."}', "", bad, '{"text": "two."}'])

    assert code == 1
    told, again = err.splitlines()
    assert told.startswith("line 3: ")
    assert BAD_LINES[bad] in told
    assert again == f"failed: {told}"
    assert out.splitlines()[-1] == "2 spoken, 0 skipped (already there), 1 failed"
    assert {path.name for path in (folder / "out").iterdir()} == {
        "output_001.wav",
        "output_004.wav",
        "spoken.jsonl",
    }


def test_a_line_that_is_not_utf_8_is_a_bad_line(batch, folder):
    (folder / "lines.txt").write_bytes(b"\xef\xbb\xbfone.\r\n\xff\xfe\r\ntwo.")

    code, _, err = batch(None, name="lines.txt")

    assert code == 1
    # Nothing else is printed, such as a warning of the byte-order mark.
    assert err == "line 2: expected UTF-8 text\nfailed: line 2: expected UTF-8 text\n"
    assert [entry["line"] for entry in record(folder)] == [1, 3]


def test_a_file_that_cannot_be_written_is_a_bad_line(batch, folder):
    (folder / "out" / "here.wav").mkdir(parents=True)
    (folder / "out" / "file").touch()
    lines = [{"text": "a", "output": "here.wav"}, {"text": "a", "output": "file/x.wav"}, {"text": "a"}]

    code, out, err = batch(lines, "--overwrite")

    assert code == 1
    assert "line 1: out/here.wav: cannot be written (it is a folder)" in err
    assert "line 2: out/file: the folder cannot be created" in err
    assert out.splitlines()[-1].startswith("1 spoken")


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
    (["lines.txt", "more.txt"], "expected a bundle and one input, got 3"),
    (["lines.txt", "-o", "lines.csv"], "lines.csv: the folder cannot be created"),
    (["lines.txt", "--cfg-value", "11"], "cfg_value must be"),
    (["lines.txt", "--prompt", "a.wav", "--prompt-text", "b"], "prompt audio a.wav: no such file"),
    (["lines.txt", "--precision", "fp32"], "it has fp16, int8"),
    ([], "[BUNDLE] INPUT"),
]


@pytest.mark.parametrize(("arguments", "message"), UNUSABLE)
def test_what_no_line_can_be_spoken_with_is_one_line_and_exit_code_two(
    bundle_folder, folder, capsys, arguments, message
):
    for name in ("lines.txt", "lines.csv", "more.txt"):
        (folder / name).write_text("a\n")
    (folder / "spoken.jsonl").write_text('{"text": "a"}\n')
    (folder / "empty.txt").write_text("\n \n")
    before = sorted(folder.rglob("*"))
    given = [*arguments, *([] if "-o" in arguments else ["-o", "."])]

    assert cli.main(["batch", *([str(bundle_folder)] if arguments else []), *given]) == 2

    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert sorted(folder.rglob("*")) == before


def test_the_record_says_which_segment_is_suspicious_and_why(batch, folder, network):
    network.stop_bias = np.array([1e3, 0], np.float32)

    batch(["a.", "hello there."], "--no-retry", name="lines.txt")

    assert [line["suspicious"] for line in record(folder)] == [{}, {"1": "cut"}]


def test_quiet_tells_only_what_went_wrong(batch):
    assert batch(['{"text": "one."}'], "--quiet") == (0, "", "")

    code, out, err = batch(['{"text": "one."}', "{bad"], "-q")

    assert (code, out) == (1, "")
    assert err.startswith("line 2: ")
    assert err.count("\n") == 1
