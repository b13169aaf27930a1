"""The built-in voices, in every interface that accepts a voice."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import soundfile

from voxcpm_runtime import GenerationOptions, InputError, Voice, VoiceStore, VoxCPM
from voxcpm_runtime.audio.pcm import pcm16
from voxcpm_runtime.bundle.opening import DEFAULT_BUNDLE
from voxcpm_runtime.commands import cli
from voxcpm_runtime.speech.request import Request
from voxcpm_runtime.voices.recordings import Recordings
from voxcpm_runtime.voices.store import BUILT_IN, built_in_voices, default_voice

TEXT, SEED = "Hello.", 3


@pytest.fixture(scope="module")
def tts():
    with VoxCPM.from_bundle(DEFAULT_BUNDLE) as opened:
        yield opened


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The working directory, with an empty voice store."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VOXCPM_COREML_VOICES", str(tmp_path / "voices"))
    return tmp_path


def test_there_are_thirteen_whose_provenance_and_licence_are_stated(tts):
    stated = (BUILT_IN / "README.md").read_text(encoding="utf-8")
    assert len(built_in_voices()) == 13
    for name, voice in built_in_voices().items():
        voice.check(tts.bundle.architecture)
        assert voice.name == name
        assert name in stated
        assert "Kokoro-82M" in voice.header.provenance["speaker"]
        assert voice.header.provenance["licence"] == "Apache-2.0"
        # The README's table has the same words.
        nation, who, *words = voice.header.provenance["sound"].replace(",", "").split()
        line = next(line for line in stated.splitlines() if line.startswith(f"| {who[:-2]}en |"))
        cell = line.split("|")[{"American": 2, "British": 3}[nation]]
        assert (f"{name} ({' '.join(words)})" if words else name) in cell


def test_every_interface_accepts_a_built_in_voice_by_name(tts, folder):
    copied = shutil.copy(BUILT_IN / "heart.voice", folder / "mine.voice")
    expected = pcm16(tts.generate(TEXT, voice=Voice.load(copied), seed=SEED))
    assert np.array_equal(pcm16(tts.generate(TEXT, voice="heart", seed=SEED)), expected)
    assert not np.array_equal(pcm16(tts.generate(TEXT, voice="michael", seed=SEED)), expected)
    given = ["--voice", "heart", "--seed", str(SEED), "--quiet"]
    assert cli.main(["generate", "--text", TEXT, *given, "-o", "one.wav"]) == 0
    (folder / "lines.txt").write_text(TEXT)
    assert cli.main(["batch", "lines.txt", "--output-dir", ".", *given]) == 0
    for name in ("one.wav", "output_001.wav"):
        assert np.array_equal(soundfile.read(name, dtype="int16")[0], expected)
    # Nothing was cached next to the installed files.
    assert not list(BUILT_IN.glob("*.prefix"))


def test_users_voice_overrides_a_built_in_one(folder, capsys):
    store = VoiceStore()
    built_in = store.load("heart")
    michael = Voice.load(BUILT_IN / "michael.voice").save(folder / "mine.voice")
    own = Voice(michael.header.model_copy(update={"name": "heart"}), michael.prompt)
    store.add(own)
    assert cli.main(["voices", "list"]) == 0
    after = capsys.readouterr().out
    assert after.startswith("heart: voxcpm")
    assert len(after.splitlines()) == 13
    assert store.load("heart") == own != built_in
    store.remove("heart")
    assert store.load("heart") == built_in
    with pytest.raises(InputError, match="voice heart is built in and cannot be removed"):
        store.remove("heart")
    assert (BUILT_IN / "heart.voice").is_file()


def test_without_a_voice_the_checkpoints_own_speaks(tts):
    own = tts.generate(TEXT, seed=SEED)
    assert np.array_equal(own, tts.generate(TEXT, voice="heart", seed=SEED))
    assert np.array_equal(own, tts.generate(TEXT, voice="default", seed=SEED))
    assert not np.array_equal(own, tts.generate(TEXT, seed=SEED, zero_shot=True))
    assert tts.plan(TEXT, zero_shot=True).voice is None


def test_speech_is_resumed_only_in_the_same_voices(tts):
    heart, seeds = Recordings(voice=built_in_voices()["heart"]), GenerationOptions(zero_shot=True)
    assert Request(TEXT).digest(tts.bundle) == Request(TEXT, heart).digest(tts.bundle)
    assert Request(TEXT).digest(tts.bundle) != Request(TEXT, options=seeds).digest(tts.bundle)
    text = "[voice mine] Hello."
    heart, emma = (
        tts.plan(text, markup=True, find_voice=lambda _, v=v: built_in_voices()[v]) for v in ("heart", "emma")
    )
    assert heart.request.digest(tts.bundle) == emma.request.digest(tts.bundle)
    assert heart.digest != emma.digest


def test_an_unknown_default_voice_is_an_error(tts):
    manifest = tts.bundle.manifest
    speech = manifest.speech.model_copy(update={"voice": "hart"})
    bundle = replace(tts.bundle, manifest=manifest.model_copy(update={"speech": speech}))
    with pytest.raises(InputError, match="names voice 'hart': expected one of alloy"):
        default_voice(bundle)


def test_built_in_voices_require_the_same_audio_vae(speaking):
    other = VoxCPM.from_bundle(speaking)
    assert other.built_in_voices == {}
    with pytest.raises(InputError, match="voice heart was made for another AudioVAE"):
        other.generate(TEXT, voice="heart")


def test_letters_that_the_voice_cannot_say_are_warned_of(tts):
    with pytest.warns(UserWarning, match="knows the letters a to z only: '中' transliterated or left out"):
        tts.plan("Say 中 please.")
