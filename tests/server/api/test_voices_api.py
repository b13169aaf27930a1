"""Voices over HTTP: created from an upload, listed, shown, used, previewed and deleted."""

import errno
import io
import json
from pathlib import Path

import httpx2
import numpy as np
import pytest
import soundfile

from voxcpm_runtime import InputError, Voice
from voxcpm_runtime.audio.pcm import pcm16
from voxcpm_server.settings import OPENAI_VOICES
from voxcpm_server.speech.stored_voices import read_aliases

TRANSCRIPT = "Hello there, this is a test of the server."
PLAIN = {"alias": False, "sound": None}
HEART = {"alias": False, "sound": "American woman, unhurried"}


@pytest.fixture
def recording(spoken):
    file = io.BytesIO()
    soundfile.write(file, spoken.audio, spoken.sample_rate, format="FLAC")
    return file.getvalue()


def upload(url, recording, **fields):
    given = {"name": "ada", "transcript": TRANSCRIPT, "consent": "true", **fields}
    return httpx2.post(
        f"{url}/v1/audio/voices",
        data={name: value for name, value in given.items() if value},
        files={"audio_sample": ("../../ada.flac", recording)},
    )


def spoken(running, voice):
    answer = running.speak(seed=5, response_format="pcm", voice=voice)
    return np.frombuffer(answer.content, "<i2")


def test_voice_lifecycle(serve, recording, tts, tmp_path):
    running, voices = serve(), "/v1/audio/voices"
    made = upload(running.url, recording)
    assert made.status_code == 201, made.text
    assert made.json()["consent"] is True
    seconds = soundfile.info(io.BytesIO(recording)).duration
    assert made.json()["prompt_seconds"] == pytest.approx(seconds, abs=0.2)
    assert running.get(f"{voices}/ada").json() == made.json()
    listed = {"id": "ada", "name": "ada", "stored": True, "built_in": False, **PLAIN}
    assert listed in running.get(voices).json()["voices"]
    stored = Voice.load(tmp_path / "voices" / "ada.voice")
    assert stored.header.provenance["consent"] == "stated"
    assert len(stored.header.provenance["sha256"]) == 64
    expected = pcm16(tts.generate("Hello.", voice=stored, seed=5, retry_badcase=False))
    for voice in ("ada", {"id": "ada"}):
        assert np.array_equal(spoken(running, voice), expected)
    previews = [running.get(f"{voices}/ada/preview") for _ in range(2)]
    assert previews[0].headers["content-type"] == "audio/mpeg"
    assert previews[0].content == previews[1].content
    assert upload(running.url, recording).status_code == 409
    assert running.delete(f"{voices}/ada").json()["deleted"] is True
    assert running.delete(f"{voices}/ada").status_code == 404
    assert running.get(f"{voices}/ada").status_code == 404
    assert not list((tmp_path / "voices").glob("*.voice"))


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({"name": "../ada"}, 400, "letters, digits"),
        ({"name": "a" * 200}, 400, "at most 100 bytes"),
        ({"name": "default"}, 409, "reserved"),
        ({"name": ""}, 400, "name"),
        ({"consent": "false"}, 400, "must consent"),
        ({"consent": ""}, 400, "consent"),
        ({"transcript": ""}, 400, "VoxCPM2"),
    ],
)
def test_invalid_uploads(fields, status, words, server, recording):
    answer = upload(server.url, recording, **fields)
    assert answer.status_code == status, answer.text
    assert words in answer.json()["error"]["message"]
    listed = server.get("/v1/audio/voices").json()["voices"]
    assert not any(voice["stored"] for voice in listed)


def test_recording_and_voice_limits(serve, recording):
    url = serve(max_recording_seconds=1).url
    too_long = upload(url, recording)
    assert (too_long.status_code, too_long.json()["error"]["param"]) == (400, "audio_sample")
    assert "longer than 1 s" in too_long.json()["error"]["message"]
    assert upload(url, b"no audio").status_code == 400
    full = upload(serve(max_voices=0).url, recording)
    assert (full.status_code, "0 are stored" in full.text) == (409, True)


def test_names_cannot_escape_the_folder(serve, recording, tmp_path, monkeypatch):
    running = serve()
    upload(running.url, recording)
    secret = (tmp_path / "voices" / "ada.voice").rename(tmp_path / "secret.voice")
    monkeypatch.chdir(tmp_path)
    for name in ("../secret", "secret.voice", "./secret.voice", str(tmp_path / "secret"), "secret"):
        assert running.speak(voice=name).status_code in (400, 404), name
    for name in ("..%2fsecret", "%2e%2e", "secret.voice"):
        for ask in (running.get, running.delete):
            assert ask(f"/v1/audio/voices/{name}").status_code in (400, 404, 405), name
    assert secret.exists()


def test_aliases_name_stored_voices(serve, recording, tmp_path):
    aliases = {"alloy": "ada", "narrator": "default", "lost": "nobody"}
    (tmp_path / "aliases.json").write_text(json.dumps(aliases))
    running = serve(voice_aliases=tmp_path / "aliases.json")
    upload(running.url, recording)

    def said(voice):
        return spoken(running, voice).tobytes()

    assert said("alloy") == said("ada") != said("echo")
    assert said("narrator") == said("default")
    # A stored voice precedes OpenAI's of the same name.
    upload(running.url, recording, name="echo")
    assert said("echo") == said("ada")
    assert running.speak(voice="lost").status_code == 404
    assert upload(running.url, recording, name="narrator").status_code == 409


def test_openais_names_map_to_thirteen_built_in_voices(serve, tts):
    running = serve()
    assert set(OPENAI_VOICES.values()) == set(tts.built_in_voices)
    assert len(OPENAI_VOICES) == len(set(OPENAI_VOICES.values())) == 13
    for name, meant in (("nova", "river"), ("onyx", "michael")):
        expected = pcm16(tts.generate("Hello.", voice=meant, seed=5, retry_badcase=False))
        assert np.array_equal(spoken(running, name), expected)
        assert np.array_equal(spoken(running, meant), expected)


def test_built_in_voice_is_listed_shown_and_replaced_but_not_deleted(serve, recording):
    running, heart = serve(), "/v1/audio/voices/heart"

    def listed():
        voices = running.get("/v1/audio/voices").json()["voices"]
        return next(voice for voice in voices if voice["id"] == "heart")

    assert listed() == {"id": "heart", "name": "heart", "stored": False, "built_in": True, **HEART}
    assert running.get(heart).json()["prompt_seconds"] > 4
    assert running.get(f"{heart}/preview").status_code == 200
    answer = running.delete(heart)
    assert (answer.status_code, "heart is built in" in answer.json()["error"]["message"]) == (409, True)
    assert upload(running.url, recording, name="heart").status_code == 201
    assert listed() == {"id": "heart", "name": "heart", "stored": True, "built_in": False, **PLAIN}
    assert running.get(heart).json()["prompt_seconds"] < 4
    assert running.delete(heart).status_code == 200
    assert listed()["built_in"] is True


def test_stored_voice_named_default_is_ignored(serve, recording, tts, tmp_path):
    (tmp_path / "voices").mkdir()
    ada = tts.create_voice(recording, TRANSCRIPT, name="default")
    ada.save(tmp_path / "voices" / "default.voice")
    running = serve()
    expected = pcm16(tts.generate("Hello.", seed=5, retry_badcase=False))
    assert np.array_equal(spoken(running, "default"), expected)
    default = {"id": "default", "name": "default", "stored": False, "built_in": False, **PLAIN}
    assert running.get("/v1/audio/voices").json()["voices"][0] == default
    assert running.get("/v1/audio/voices/default").status_code == 404
    assert running.delete("/v1/audio/voices/default").status_code == 200


def refused(answer, folder):
    """Status and code of an error that must not contain a server path."""
    assert str(folder) not in answer.text
    return answer.status_code, answer.json()["error"]["code"]


def test_disk_errors_are_server_errors(serve, recording, tmp_path, monkeypatch, caplog):
    running, full_disk = serve(), (507, "storage")
    assert upload(running.url, recording).status_code == 201

    def full(path, *_, **__):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(Voice, "save", lambda _, path, **__: full(path))
        assert refused(upload(running.url, recording, name="ben"), tmp_path) == full_disk
        patched.setattr(Path, "unlink", full)
        assert refused(running.delete("/v1/audio/voices/ada"), tmp_path) == full_disk
        patched.setattr(Path, "iterdir", full)
        assert refused(running.get("/v1/audio/voices"), tmp_path) == full_disk
        assert running.speak().status_code == 200, "the default voice is not in the folder"
        assert refused(running.speak(voice="Ada"), tmp_path) == full_disk
    assert f"{tmp_path / 'voices'}" in caplog.text
    assert upload(running.url, recording, name="ben").status_code == 201


def test_corrupt_voice_is_a_server_error_and_can_be_deleted(serve, recording, tmp_path, caplog):
    running, ada = serve(), "/v1/audio/voices/ada"
    upload(running.url, recording)
    path = tmp_path / "voices" / "ada.voice"
    path.write_bytes(path.read_bytes()[:-1])
    for answer in (running.speak(voice="ada"), running.get(ada), running.get(f"{ada}/preview")):
        assert refused(answer, tmp_path) == (409, "voice_damaged")
    assert str(path) in caplog.text
    assert running.delete(ada).json()["deleted"] is True
    assert upload(running.url, recording).status_code == 201


@pytest.mark.parametrize("content", ["[]", '{"alloy": 1}', "{", '{"default": "ada"}'])
def test_unreadable_aliases(content, tmp_path):
    path = tmp_path / "aliases.json"
    path.write_text(content)
    with pytest.raises(InputError, match="aliases"):
        read_aliases(path)
