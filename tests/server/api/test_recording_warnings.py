"""Clients hear of a recording that would spoil the speech: warnings of the runtime stay on the server."""

import io
import json
from typing import Any

import httpx2
import numpy as np
import pytest
import soundfile


# Those are turned into errors here, and an unseeded voice may speak slowly.
@pytest.mark.filterwarnings("ignore:the prompt has", "ignore::voxcpm_runtime.SuspiciousWarning")
def test_transcript_of_another_recording_is_reported(server: Any) -> None:
    file, noise = io.BytesIO(), np.random.default_rng(0).standard_normal(64_000) * 0.1
    soundfile.write(file, noise, 16_000, format="WAV")
    recording = ("me.wav", file.getvalue())

    form = {"input": "Hi.", "prompt_text": "So it is."}
    files = {"prompt_audio": recording}
    answer = httpx2.post(f"{server.url}/v1/audio/speech", data=form, files=files)
    (fault,) = json.loads(answer.headers["X-Recording-Warnings"])
    assert "the prompt has 4.0 s of sound" in fault

    form = {"name": "ada", "consent": "true", "transcript": "So it is."}
    made = httpx2.post(f"{server.url}/v1/audio/voices", data=form, files={"audio_sample": recording})
    assert made.json()["warnings"] == [fault]
    assert httpx2.get(f"{server.url}/v1/audio/voices/ada").json()["warnings"] == []
