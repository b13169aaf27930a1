"""The commands `clear-cache`, which removes only this project's cache, `inspect`, and `voices`, with `--voice`."""

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

from voxcpm_runtime.audio.pcm import pcm16
from voxcpm_runtime.commands import cli
from voxcpm_runtime.voxcpm import VoxCPM

KEPT = (
    "voices/ada.voice",
    "compiled/mine.txt",
    "lowered/notes/a.lowered.txt",
    "bundles/mine/manifest.json",
    "compiled/0-24F74.lock",
    "bundles/pretrained-0.lock",
)
CACHED = (
    "compiled/0-24F74.mlmodelc/weights/weight.bin",
    "compiled/0-24F74.mlmodelc.main-ALL.loaded",
    "compiled/1.hung",
    "lowered/a.lowered",
    "verified/b.json",
    "measured/.c.json.0.part",
)
BUNDLES = ("bundles/pretrained-0/manifest.json", "bundles/.pretrained-1/manifest.json")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache with a megabyte in each file."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("VOXCPM_COREML_CACHE", str(folder))
    for name in (*KEPT, *CACHED, *BUNDLES):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(bytes(10**6))
    return folder


def files(cache):
    return {path.relative_to(cache).as_posix() for path in cache.rglob("*") if path.is_file()}


def test_clear_cache_removes_entries_and_prints_their_size(cache, capsys):
    link = cache / "compiled" / "1-24F74.mlmodelc"
    link.symlink_to(cache / "voices")
    assert cli.main(["clear-cache"]) == 0
    assert not link.is_symlink()
    assert files(cache) == {*KEPT, *BUNDLES}
    removed = {"compiled": 3, "lowered": 1, "verified": 1, "measured": 1}
    expected = [f"{cache}/{name}: {count}.0 MB removed" for name, count in removed.items()]
    assert capsys.readouterr().out.splitlines() == expected
    assert cli.main(["clear-cache", "--all", "--json"]) == 0
    removed = {f"{cache}/{name}": 0 for name in removed} | {f"{cache}/bundles": 2 * 10**6}
    assert json.loads(capsys.readouterr().out) == removed
    assert files(cache) == set(KEPT)


def test_inspect_describes_a_bundle(bundle_folder, run, architecture):
    text = run("inspect", bundle_folder)[1]
    facts = json.loads(run("inspect", bundle_folder, "--json", "--verify")[1])
    assert f"{architecture.output_sample_rate} Hz out" in text
    assert text.split()[:4] == [architecture.generation, "from", "tiny", "(no"]
    assert facts["architecture"] == architecture.generation
    assert facts["sizes"]["kv_length"] == 48
    assert facts["step_models"]["locdit_step"]["inputs"]["t_embedding"] == [2, 6, "float32"]
    # The package's only file contains its precision and its name.
    assert facts["step_models"]["locdit_step"]["bytes"] == {"fp16": 15, "int8": 15}
    assert set(facts["precisions"]) == {"fp16", "int8"}


def test_inspect_checks_every_file(bundle_folder, run, refusal):
    package = bundle_folder / "fp16" / "locdit_step.mlpackage" / "Manifest.json"
    package.write_text("x" * package.stat().st_size)
    assert run("inspect", bundle_folder)[0] == 0
    refusal("inspect", bundle_folder, "--verify")
    package.unlink()
    assert "locdit_step" in refusal("inspect", bundle_folder)


ADD = ("--prompt", "prompt.wav", "--prompt-text", "so it is ")


@pytest.fixture(autouse=True)
def _recordings(folder, monkeypatch):
    """Recordings in the working directory, and a voice store next to them."""
    monkeypatch.setenv("VOXCPM_COREML_VOICES", str(folder / "voices"))
    rng = np.random.default_rng(0)
    for name in ("prompt.wav", "voice.wav"):
        soundfile.write(name, rng.uniform(-0.5, 0.5, 100), 1000, subtype="FLOAT")


def written(path):
    return soundfile.read(path, dtype="int16")[0]


def test_default_means_the_checkpoints_voice(speaking, folder, run, refusal):
    refused = refusal("voices", "add", "default", speaking, *ADD)
    assert "default is the checkpoint's own voice; choose another name" in refused
    run("voices", "add", "ada", speaking, *ADD)
    (folder / "voices" / "ada.voice").rename(folder / "voices" / "default.voice")
    speak = ("generate", speaking, "-t", "hello.", "--seed", 3, "-q", "-o")
    assert run(*speak, "own.wav") == (0, "", "")
    assert run(*speak, "default.wav", "--voice", "default") == (0, "", "")
    assert Path("own.wav").read_bytes() == Path("default.wav").read_bytes()
    assert "default is the checkpoint's own voice, which has no file" in run("voices", "list")[1]


def test_a_voice_is_added_listed_shown_used_and_removed(speaking, folder, run):
    code, out, _ = run("voices", "add", "ada", speaking, *ADD)
    assert (code, out.strip().endswith("prompt of 5 patches: 'so it is'")) == (0, True)
    code, out, _ = run("voices", "list")
    assert code == 0
    assert out.startswith("ada: voxcpm")
    shown = json.loads(run("voices", "show", "ada")[1])
    assert json.loads(run("voices", "list", "--json")[1])[0] == shown
    assert (shown["name"], shown["prompt_patches"], shown["turns"][0]["text"]) == ("ada", 5, "so it is ")
    assert shown["provenance"]["prompt"] == "prompt.wav"
    expected = VoxCPM.from_bundle(speaking).generate("hello.", "prompt.wav", "so it is ", seed=3)
    by_name = VoxCPM.from_bundle(speaking).generate("hello.", voice="ada", seed=3)
    np.testing.assert_array_equal(by_name, expected)
    for command, voice in (("generate", "ada"), ("clone", folder / "voices" / "ada.voice")):
        speak = (command, speaking, "--voice", voice, "-t", "hello.", "--seed", 3, "-o", "a.wav", "-q")
        assert run(*speak)[0] == 0
        np.testing.assert_array_equal(written("a.wav"), pcm16(expected))
    assert run("voices", "remove", "ada")[0] == 0
    assert not list((folder / "voices").iterdir())
    assert "ada" not in run("voices", "list")[1]


def test_batch_accepts_voices_per_line_and_overall(speaking, batch, run):
    assert run("voices", "add", "ada", speaking, *ADD)[0] == 0
    assert run("voices", "add", "Bob b.", speaking, "-pa", "voice.wav", "-pt", "so ")[0] == 0
    line = {"text": "hello.", "seed": 3}
    prompt = {"prompt": "prompt.wav", "prompt_text": "so it is "}
    code, _, err = batch(
        [
            {**line, "output": "all.wav"},
            {**line, "output": "own.wav", "voice": "Bob b."},
            {**line, "output": "none.wav", "voice": None},
            {**line, "output": "audio.wav", **prompt},
            {**line, "output": "both.wav", "voice": "Bob b.", **prompt},
            {**line, "output": "who.wav", "voice": "eve"},
        ],
        "--voice",
        "ada",
    )
    assert code == 1
    assert "line 5: a voice replaces prompt and reference" in err
    assert "line 6: no voice eve (available: Bob b., ada, alloy" in err
    tts = VoxCPM.from_bundle(speaking)
    recordings = {"all": tuple(prompt.values()), "own": ("voice.wav", "so "), "none": ()}
    for name, recording in {**recordings, "audio": recordings["all"]}.items():
        expected = tts.generate("hello.", *recording, seed=3)
        np.testing.assert_array_equal(written(f"out/{name}.wav"), pcm16(expected), err_msg=name)


def test_silence_can_be_trimmed(speaking, run):
    sound = np.random.default_rng(0).uniform(-0.5, 0.5, 300)
    soundfile.write("long.wav", np.pad(sound, 2000), 1000, subtype="FLOAT")
    add = ("voices", "add", "ada", speaking, "--prompt", "long.wav", "--prompt-text", "so.", "--overwrite")
    patches = []
    for options in ((), ("--trim-silence",)):
        assert run(*add, *options)[0] == 0
        patches.append(json.loads(run("voices", "show", "ada")[1])["prompt_patches"])
    assert patches[1] < patches[0]


@pytest.mark.parametrize("architecture", ["voxcpm"], indirect=True)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("voices", "add", "ada", "BUNDLE", *ADD), "a voice ada already exists"),
        (("voices", "add", "a/b", "BUNDLE", *ADD), "voice name: expected"),
        (("voices", "add", "eve", "BUNDLE", "--prompt", "prompt.wav"), "--prompt needs a transcript"),
        (("voices", "remove", "eve"), "no voice eve (available: ada, alloy"),
        (("generate", "BUNDLE", "-t", "a", "-v", "eve.voice"), "voice eve.voice: no such file"),
        (("generate", "BUNDLE", "-t", "a", "-v", "ada", *ADD), "a voice replaces prompt and reference"),
        (("design", "BUNDLE", "-t", "a", "-v", "ada"), "not from a recording, got --voice"),
    ],
)
def test_invalid_voice_options_are_one_line_errors(speaking, run, refusal, arguments, message):
    assert run("voices", "add", "ada", speaking, *ADD)[0] == 0
    assert message in refusal(*(speaking if part == "BUNDLE" else part for part in arguments))


def test_a_lexicon_of_a_voice_or_a_command_says_words_differently(speaking, folder, run, refusal):
    (folder / "voices.tsv").write_text("ada\tone two\n")
    (folder / "mine.tsv").write_text("bob\tthree\n")
    assert run("voices", "add", "plain", speaking, *ADD, "-q") == (0, "", "")
    assert run("voices", "add", "lexical", speaking, *ADD, "--lexicon", "voices.tsv", "-q") == (0, "", "")
    assert json.loads(run("voices", "show", "lexical")[1])["lexicon"] == {"ada": "one two"}
    speak = ("generate", speaking, "--seed", 3, "-q")
    run(*speak, "-t", "one two, three.", "--voice", "plain", "-o", "said.wav")
    run(*speak, "-t", "Ada, Bob.", "--voice", "lexical", "--lexicon", "mine.tsv", "-o", "ada.wav")
    assert np.array_equal(written("ada.wav"), written("said.wav"))
    (folder / "lines.jsonl").write_text(
        '{"text": "Ada, Bob.", "seed": 3, "voice": "lexical", "output": "a.wav"}'
    )
    batch = ("batch", speaking, "lines.jsonl", "-o", "out", "--lexicon", "mine.tsv")
    assert "1 spoken" in run(*batch)[1]
    assert np.array_equal(written("out/a.wav"), written("said.wav"))
    assert "1 skipped" in run(*batch)[1]
    (folder / "mine.tsv").write_text("bob\tfour\n")
    assert "1 spoken" in run(*batch)[1]
    refusal(*speak, "-t", "Ada.", "--lexicon", "prompt.wav", "-o", "x.wav")
