"""Clients hear of a recording that would spoil the speech: warnings of the runtime stay on the server."""

import io
import json

import httpx2
import numpy as np
import pytest
import soundfile

from waiting import until


def recorded(samples):
    file = io.BytesIO()
    soundfile.write(file, samples, 16_000, format="WAV")
    return "me.wav", file.getvalue()


# Those are turned into errors here, and an unseeded voice may speak slowly.
@pytest.mark.filterwarnings("ignore:the prompt has", "ignore::voxcpm_runtime.SuspiciousWarning")
def test_transcript_of_another_recording_is_reported(server):
    recording = recorded(np.random.default_rng(0).standard_normal(64_000) * 0.1)
    form = {"input": "Hi.", "prompt_text": "So it is."}
    files = {"prompt_audio": recording}
    answer = httpx2.post(f"{server.url}/v1/audio/speech", data=form, files=files)
    (fault,) = json.loads(answer.headers["X-Recording-Warnings"])
    assert "the prompt has 4.0 s of sound" in fault
    form = {"name": "ada", "consent": "true", "transcript": "So it is."}
    job = httpx2.post(
        f"{server.url}/v1/audio/jobs", data={"input": "Hi.", "prompt_text": "So it is."}, files=files
    )
    assert job.json()["warnings"] == [fault]
    url = f"{server.url}/v1/audio/jobs/{job.json()['id']}"
    until(lambda: httpx2.get(url).json()["state"] == "done")
    assert httpx2.get(url).json()["warnings"] == [fault]
    made = httpx2.post(f"{server.url}/v1/audio/voices", data=form, files={"audio_sample": recording})
    assert made.json()["warnings"] == [fault]
    assert httpx2.get(f"{server.url}/v1/audio/voices/ada").json()["warnings"] == []


@pytest.mark.filterwarnings("ignore:prompt audio", "ignore::voxcpm_runtime.SuspiciousWarning")
def test_quiet_recordings_and_channels_that_cancel_are_reported(server):
    voice = np.sin(np.arange(16_000) * 0.1) * 0.0015
    files = {"prompt_audio": recorded(np.stack([voice, -voice], axis=1))}
    form = {"input": "Hi.", "prompt_text": "So it is, my dear."}
    answer = httpx2.post(f"{server.url}/v1/audio/speech", data=form, files=files)
    cancelled, quiet = json.loads(answer.headers["X-Recording-Warnings"])
    assert cancelled.startswith("prompt audio: its channels cancel each other")
    assert quiet.startswith("prompt audio: very quiet, -59 dBFS")
    form = {"name": "bob", "consent": "true", "transcript": "So it is, my dear."}
    files = {"audio_sample": files["prompt_audio"]}
    made = httpx2.post(f"{server.url}/v1/audio/voices", data=form, files=files)
    assert made.json()["warnings"] == [cancelled, quiet]
