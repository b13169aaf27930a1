"""Features of VoxCPM2 over HTTP: instructions, a reference, a voice without a transcript."""

import base64

import numpy as np
import pytest
import soundfile

from server_on_loopback import ServerOnLoopback
from voxcpm_runtime import VoxCPM
from voxcpm_runtime.audio.pcm import pcm16

# With random weights, speech stops only when the cache is full.
pytestmark = [
    pytest.mark.filterwarnings("ignore:segment 1. the speech was cut off"),
]
TEXT = "Hello there."
GIVEN = {"seed": 5, "inference_timesteps": 2}


@pytest.fixture(scope="module")
def second(second_bundle):
    with VoxCPM.from_bundle(second_bundle, precision="fp32") as opened:
        yield opened


@pytest.fixture
def running(second, tmp_path):
    with ServerOnLoopback.of(second, voices_folder=tmp_path / "voices") as server:
        yield server


@pytest.fixture
def recording(tmp_path):
    """An audio file with a quarter of a second of noise."""
    path = tmp_path / "me.wav"
    noise = np.random.default_rng(0).normal(0, 0.1, 4_000)
    soundfile.write(path, noise, 16_000, subtype="FLOAT")
    return path


def said(running, second, **fields):
    asked = {"model": "tts-1", "input": TEXT, "response_format": "pcm", "sample_rate": second.sample_rate}
    answer = running.post("/v1/audio/speech", json={**asked, **GIVEN, **fields})
    assert answer.status_code == 200, answer.text
    assert "x-ignored-fields" not in answer.headers
    return np.frombuffer(answer.content, "<i2")


def spoken(second, **given):
    return pcm16(second.speak(TEXT, retry_badcase=False, **GIVEN, **given).audio)


def test_instructions_and_references_equal_the_runtimes(running, second, recording):
    content = recording.read_bytes()
    form = {"name": "ada", "consent": "true"}
    made = running.post("/v1/audio/voices", data=form, files={"audio_sample": content})
    assert made.status_code == 201, made.text
    assert made.json()["prompt_seconds"] == 0 < made.json()["reference_seconds"]
    plain = spoken(second)
    styled = spoken(second, control="warm, slow")
    referred = spoken(second, reference_wav_path=recording)
    voiced = spoken(second, voice=second.create_voice(recording, None, name="ada"))
    both = spoken(second, control="warm, slow", reference_wav_path=recording)
    for other in (styled, referred, both):
        assert not np.array_equal(plain, other)
    encoded = base64.b64encode(content).decode()
    np.testing.assert_array_equal(said(running, second, instructions="warm, slow"), styled)
    np.testing.assert_array_equal(said(running, second, reference_audio=encoded), referred)
    np.testing.assert_array_equal(said(running, second, voice="ada"), voiced)
    np.testing.assert_array_equal(
        said(running, second, instructions="warm, slow", reference_audio=encoded), both
    )


def test_built_in_voices_need_the_default_bundle(running, second):
    voices = running.get("/v1/audio/voices").json()["voices"]
    assert "heart" not in [voice["id"] for voice in voices]
    assert not any(voice["built_in"] for voice in voices)
    assert np.array_equal(said(running, second, voice="onyx"), spoken(second))
    unknown = {"model": "tts-1", "input": TEXT, "voice": "heart"}
    assert running.post("/v1/audio/speech", json=unknown).status_code == 404
