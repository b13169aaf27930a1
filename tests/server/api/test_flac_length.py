"""A complete FLAC says how long it is."""

import io
from typing import Any

import httpx2
import numpy as np
import soundfile

from voxcpm_server.speech.encoding import Encoder


def test_complete_flac_has_its_length(server: Any) -> None:
    body = {"input": "Hello.", "response_format": "flac", "stream": False}
    answer = httpx2.post(f"{server.url}/v1/audio/speech", json=body, timeout=60)

    info = soundfile.info(io.BytesIO(answer.content))
    samples, rate = soundfile.read(io.BytesIO(answer.content))
    assert info.frames == len(samples) > 0
    assert abs(len(samples) / rate - float(answer.headers["x-audio-duration"])) < 0.001


def test_length_is_in_the_first_bytes() -> None:
    encoder = Encoder("flac", 48_000)
    body = encoder.encode(np.zeros(100_000, np.float32)) + encoder.finish()
    assert soundfile.info(io.BytesIO(encoder.completed(body))).frames == 100_000
    assert encoder.completed(body)[26:] == body[26:]
