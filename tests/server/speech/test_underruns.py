"""Underruns: streams whose listener would have to wait for speech, and not for text."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from websockets.sync.client import connect

from voxcpm_server.speech.speaking import Playback

# Chance may give a voice that takes long; whether it does is not what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore::voxcpm_runtime.SuspiciousWarning")
SLOW = 0.05
"""Seconds more for an Euler step, with which speech is slower than it is heard."""


@pytest.mark.parametrize(
    ("pieces", "ran_out"),
    [
        # Seconds to make a piece, seconds of audio, seconds until the reader has room, and since when it has its text.
        ([(5, 1, 0), (0.9, 1, 0), (1.0, 1, 0)], False),
        ([(5, 1, 0), (1.1, 1, 0)], True),
        ([(0, 1, 0), (0, 1, 0), (2.1, 1, 0), (0, 1, 0)], True),
        # A reader that takes nothing hears nothing.
        ([(0, 1, 0), (0.5, 1, 30), (0.5, 1, 0)], False),
        # The player was silent when the text came, or had still something to play.
        ([(5, 1, 0, 5), (3, 1, 0, 1.9)], False),
        ([(5, 1, 0, 5), (3, 1, 0, 2.1)], True),
    ],
)
def test_a_listener_waits_only_for_speech(
    pieces: list[tuple[float, ...]], ran_out: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("voxcpm_server.speech.speaking.time.perf_counter", lambda: now)
    playback = Playback()
    for work, seconds, waited, *text in pieces:
        now += work
        playback.takes(seconds, *(now - age for age in text))
        now += waited
        playback.pauses(waited)
    assert playback.ran_out is ran_out


def test_a_late_stream_is_in_the_metrics(serve: Callable[..., Any], euler_steps: Any) -> None:
    running = serve()
    given = {"model": "tts-1", "input": "Hello.", "response_format": "pcm", "seed": 1}
    euler_steps.seconds = SLOW
    httpx2.post(f"{running.url}/v1/audio/speech", json=given, timeout=60)

    assert "voxcpm_underruns_total 1.0" in httpx2.get(f"{running.url}/metrics").text
    # What is answered whole is not heard while it is made.
    httpx2.post(f"{running.url}/v1/audio/speech", json={**given, "stream": False}, timeout=60)
    assert "voxcpm_underruns_total 1.0" in httpx2.get(f"{running.url}/metrics").text


@pytest.mark.parametrize("speed", [0.25, 4])
def test_a_listener_hears_at_the_speed_that_was_asked_for(
    speed: float, serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    running = serve()
    heard: list[float] = []
    monkeypatch.setattr(Playback, "takes", lambda _, seconds, *__: heard.append(seconds))
    given = {"model": "tts-1", "input": "One two three four five six seven.", "seed": 1}
    answer = httpx2.post(
        f"{running.url}/v1/audio/speech", json={**given, "response_format": "pcm", "speed": speed}, timeout=60
    )

    # Samples of 16 bits at 24 kHz.
    assert sum(heard) == pytest.approx(len(answer.content) / 48_000, rel=0.1)


@pytest.mark.parametrize(("slow", "underruns"), [(SLOW, 1), (0.0, 0)])
def test_text_in_fragments_counts_late_speech_and_not_late_text(
    slow: float, underruns: int, serve: Callable[..., Any], euler_steps: Any
) -> None:
    running = serve()
    euler_steps.seconds = slow
    with connect(f"{running.url.replace('http', 'ws')}/v1/audio/stream", close_timeout=5) as connection:

        def say(*messages: dict[str, Any]) -> None:
            for message in messages:
                connection.send(json.dumps(message))

        def heard(last: str) -> int:
            """Bytes of audio up to an event of that type."""
            size = 0
            while isinstance(message := connection.recv(timeout=60), bytes) or f'"{last}"' not in message:
                size += len(message) if isinstance(message, bytes) else 0
            return size

        say({"type": "start", "seed": 7}, {"type": "text", "text": "Hello."}, {"type": "flush"})
        size = heard("flushed")
        # All of it has been heard before there is more to say.
        time.sleep(0 if slow else size / 48_000 + 0.3)
        say({"type": "text", "text": " Hello."}, {"type": "end"})
        heard("done")
    assert f"voxcpm_underruns_total {underruns}.0" in httpx2.get(f"{running.url}/metrics").text
