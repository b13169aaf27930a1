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
SAID = {"model": "tts-1", "input": "Hello.", "response_format": "pcm", "seed": 5}


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
        timeout=60,
    )


def test_voice_lifecycle(serve, recording, tts, tmp_path):
    running = serve()
    voices = f"{running.url}/v1/audio/voices"

    made = upload(running.url, recording)
    assert made.status_code == 201, made.text
    assert made.json()["consent"] is True
    assert made.json()["prompt_seconds"] == pytest.approx(2.4, abs=0.2)
    assert httpx2.get(f"{voices}/ada").json() == made.json()
    assert {"id": "ada", "name": "ada", "stored": True, "built_in": False, **PLAIN} in httpx2.get(
        voices
    ).json()["voices"]

    stored = Voice.load(tmp_path / "voices" / "ada.voice")
    assert stored.header.provenance["consent"] == "stated"
    assert len(stored.header.provenance["sha256"]) == 64

    expected = pcm16(tts.generate("Hello.", voice=stored, seed=5, retry_badcase=False))
    for voice in ("ada", {"id": "ada"}):
        answer = httpx2.post(f"{running.url}/v1/audio/speech", json={**SAID, "voice": voice}, timeout=60)
        assert np.array_equal(np.frombuffer(answer.content, "<i2"), expected)

    previews = [httpx2.get(f"{voices}/ada/preview", timeout=60) for _ in range(2)]
    assert previews[0].headers["content-type"] == "audio/mpeg"
    assert previews[0].content == previews[1].content

    assert upload(running.url, recording).status_code == 409
    assert httpx2.delete(f"{voices}/ada").json()["deleted"] is True
    assert httpx2.delete(f"{voices}/ada").status_code == 404
    assert httpx2.get(f"{voices}/ada").status_code == 404
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
    listed = httpx2.get(f"{server.url}/v1/audio/voices").json()["voices"]
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
    url = serve().url
    upload(url, recording)
    secret = (tmp_path / "voices" / "ada.voice").rename(tmp_path / "secret.voice")
    monkeypatch.chdir(tmp_path)
    for name in ("../secret", "secret.voice", "./secret.voice", str(tmp_path / "secret"), "secret"):
        answer = httpx2.post(f"{url}/v1/audio/speech", json={**SAID, "voice": name}, timeout=60)
        assert answer.status_code in (400, 404), name
    for name in ("..%2fsecret", "%2e%2e", "secret.voice"):
        for method in ("GET", "DELETE"):
            assert httpx2.request(method, f"{url}/v1/audio/voices/{name}").status_code in (400, 404, 405), (
                name
            )
    assert secret.exists()


def test_aliases_name_stored_voices(serve, recording, tmp_path):
    (tmp_path / "aliases.json").write_text(
        json.dumps({"alloy": "ada", "narrator": "default", "lost": "nobody"})
    )
    running = serve(voice_aliases=tmp_path / "aliases.json")
    upload(running.url, recording)

    def said(voice):
        return httpx2.post(f"{running.url}/v1/audio/speech", json={**SAID, "voice": voice}, timeout=60)

    assert said("alloy").content == said("ada").content
    assert said("narrator").content == said("default").content
    assert said("alloy").content != said("echo").content
    # A stored voice precedes OpenAI's of the same name.
    upload(running.url, recording, name="echo")
    assert said("echo").content == said("ada").content
    assert said("lost").status_code == 404
    assert upload(running.url, recording, name="narrator").status_code == 409


def test_openais_names_map_to_thirteen_built_in_voices(serve, tts):
    running = serve()

    def said(voice):
        answer = httpx2.post(f"{running.url}/v1/audio/speech", json={**SAID, "voice": voice}, timeout=60)
        return np.frombuffer(answer.content, "<i2")

    assert set(OPENAI_VOICES.values()) == set(tts.built_in_voices)
    assert len(OPENAI_VOICES) == len(set(OPENAI_VOICES.values())) == 13
    for name, meant in (("nova", "river"), ("onyx", "michael")):
        expected = pcm16(tts.generate("Hello.", voice=meant, seed=5, retry_badcase=False))
        assert np.array_equal(said(name), expected)
        assert np.array_equal(said(meant), expected)


def test_built_in_voice_is_listed_shown_and_replaced_but_not_deleted(serve, recording):
    running = serve()
    voices = f"{running.url}/v1/audio/voices"

    def listed():
        (found,) = [voice for voice in httpx2.get(voices).json()["voices"] if voice["id"] == "heart"]
        return dict(found)

    assert listed() == {"id": "heart", "name": "heart", "stored": False, "built_in": True, **HEART}
    assert httpx2.get(f"{voices}/heart").json()["prompt_seconds"] > 4
    assert httpx2.get(f"{voices}/heart/preview", timeout=60).status_code == 200
    answer = httpx2.delete(f"{voices}/heart")
    assert (answer.status_code, "heart is built in" in answer.json()["error"]["message"]) == (409, True)
    assert upload(running.url, recording, name="heart").status_code == 201
    assert listed() == {"id": "heart", "name": "heart", "stored": True, "built_in": False, **PLAIN}
    assert httpx2.get(f"{voices}/heart").json()["prompt_seconds"] < 4
    assert httpx2.delete(f"{voices}/heart").status_code == 200
    assert listed()["built_in"] is True


def test_stored_voice_named_default_is_ignored(serve, recording, tts, tmp_path):
    (tmp_path / "voices").mkdir()
    ada = tts.create_voice(recording, TRANSCRIPT, name="default")
    ada.save(tmp_path / "voices" / "default.voice")
    url = serve().url
    answer = httpx2.post(f"{url}/v1/audio/speech", json={**SAID, "voice": "default"}, timeout=60)
    expected = pcm16(tts.generate("Hello.", seed=5, retry_badcase=False))
    assert np.array_equal(np.frombuffer(answer.content, "<i2"), expected)
    assert httpx2.get(f"{url}/v1/audio/voices").json()["voices"][0] == {
        "id": "default", "name": "default", "stored": False, "built_in": False, **PLAIN,
    }  # fmt: skip
    assert httpx2.get(f"{url}/v1/audio/voices/default").status_code == 404
    assert httpx2.delete(f"{url}/v1/audio/voices/default").status_code == 200


def refused(answer, folder):
    """Status and code of an error that must not contain a server path."""
    assert str(folder) not in answer.text
    return answer.status_code, answer.json()["error"]["code"]


def test_disk_errors_are_server_errors(serve, recording, tmp_path, monkeypatch, caplog):
    running = serve()
    assert upload(running.url, recording).status_code == 201

    def full(path, *_, **__):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(Voice, "save", lambda _, path, **__: full(path))
        assert refused(upload(running.url, recording, name="ben"), tmp_path) == (507, "storage")
        patched.setattr(Path, "unlink", full)
        assert refused(httpx2.delete(f"{running.url}/v1/audio/voices/ada"), tmp_path) == (507, "storage")
        patched.setattr(Path, "iterdir", full)
        assert refused(httpx2.get(f"{running.url}/v1/audio/voices"), tmp_path) == (507, "storage")
        speech = f"{running.url}/v1/audio/speech"
        assert httpx2.post(speech, json=SAID).status_code == 200, "the default voice is not in the folder"
        assert refused(httpx2.post(speech, json=SAID | {"voice": "Ada"}), tmp_path) == (507, "storage")
    assert f"{tmp_path / 'voices'}" in caplog.text
    assert upload(running.url, recording, name="ben").status_code == 201


def test_corrupt_voice_is_a_server_error_and_can_be_deleted(serve, recording, tmp_path, caplog):
    running = serve()
    upload(running.url, recording)
    path = tmp_path / "voices" / "ada.voice"
    path.write_bytes(path.read_bytes()[:-1])
    voice = f"{running.url}/v1/audio/voices/ada"
    damaged = (409, "voice_damaged")
    said = httpx2.post(f"{running.url}/v1/audio/speech", json={**SAID, "voice": "ada"}, timeout=60)
    assert refused(said, tmp_path) == damaged
    assert refused(httpx2.get(voice), tmp_path) == damaged
    assert refused(httpx2.get(f"{voice}/preview"), tmp_path) == damaged
    assert str(path) in caplog.text
    assert httpx2.delete(voice).json()["deleted"] is True
    assert upload(running.url, recording).status_code == 201


@pytest.mark.parametrize("content", ["[]", '{"alloy": 1}', "{", '{"default": "ada"}'])
def test_unreadable_aliases(content, tmp_path):
    path = tmp_path / "aliases.json"
    path.write_text(content)
    with pytest.raises(InputError, match="aliases"):
        read_aliases(path)
