"""Requests as Open WebUI 0.12 and SillyTavern send them, recorded by hand from their sources."""

from __future__ import annotations

import io
from typing import Any

import httpx2
import numpy as np
import pytest
import soundfile

from heard_words import SAID, wrong_words

KEY = {"Authorization": "Bearer sk-anything"}


def heard(answer: httpx2.Response) -> tuple[np.ndarray, int]:
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "audio/mpeg"
    assert answer.headers.get("content-encoding") is None
    return soundfile.read(io.BytesIO(answer.content), dtype="float32")


def misheard(audio: np.ndarray, rate: int) -> int:
    return wrong_words((np.clip(audio, -1, 1) * 32767).astype("<i2").tobytes(), rate)


def test_open_webui_lists_and_speaks(server: Any) -> None:
    base = f"{server.url}/v1"
    # It asks for the models of speech, and takes all models where there is no such list.
    models = httpx2.get(f"{base}/audio/models", headers=KEY).json()["models"]
    assert all(isinstance(model["id"], str) for model in models)
    # A list of strings in place of these objects breaks it.
    voices = httpx2.get(f"{base}/audio/voices", headers=KEY).json()["voices"]
    assert {voice["id"]: voice["name"] for voice in voices}["alloy"] == "alloy"
    # Its parameters of the administrator's stand beside the model, and it stores the whole body as an MP3.
    asked = {"input": SAID, "voice": voices[0]["id"], "seed": 9, "model": models[0]["id"], "user": "a-user"}
    answer = httpx2.post(
        f"{base}/audio/speech",
        json=asked,
        headers={**KEY, "Content-Type": "application/json", "X-OpenWebUI-User-Name": "Ada"},
        timeout=60,
    )
    audio, rate = heard(answer)
    assert misheard(audio, rate) <= 4


@pytest.mark.listening
@pytest.mark.usefixtures("seeded")
@pytest.mark.parametrize(("path", "speed"), [("/v1/audio/speech", 1), ("/audio/speech", 1.5)])
def test_sillytavern_speaks_to_the_whole_url(path: str, speed: float, server: Any) -> None:
    asked = {
        "model": "tts-1",
        "input": SAID,
        "voice": "shimmer",
        "response_format": "mp3",
        "speed": speed,
    }
    audio, rate = heard(httpx2.post(f"{server.url}{path}", json=asked, headers=KEY, timeout=60))
    assert rate == 24_000
    assert misheard(audio, rate) <= 4
