"""Jobs on a bundle with slots."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from server_on_loopback import ServerOnLoopback
from voxcpm_runtime import VoxCPM, pcm16
from waiting import until

FEW_STEPS: Any = {"inference_timesteps": 2}
# Random weights say nothing that has the length of its text.
pytestmark = pytest.mark.filterwarnings("ignore::voxcpm_runtime.speech.results.SuspiciousWarning")


def test_a_job_gives_its_turn_up_without_keeping_a_slot_and_sounds_as_it_does_alone(
    batch_server: ServerOnLoopback, batch_tts: VoxCPM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it waits for a turn, all slots speak to requests."""
    jobs, service = f"{batch_server.url}/v1/audio/jobs", batch_server.service
    given = {"model": "tts-1", "seed": 1, **FEW_STEPS}
    spoken_to, enter_last, crowded = [0], service.queue.enter_last, threading.Event()

    async def entered() -> Any:
        end = time.monotonic() + 10
        while crowded.is_set() and spoken_to[0] < 3 and time.monotonic() < end:
            spoken_to[0] = max(
                spoken_to[0], sum(stream.patches > 0 for stream in service.bundles.default.speeches._running)
            )
            await asyncio.sleep(0.005)
        return await enter_last()

    monkeypatch.setattr(service.queue, "enter_last", entered)
    text, rate = "one two three. " * 6, batch_tts.sample_rate
    asked = {**given, "input": text, "response_format": "pcm", "sample_rate": rate}
    job = httpx2.post(jobs, json=asked, timeout=60).json()
    assert job["segments"] > 1
    until(lambda: httpx2.get(f"{jobs}/{job['id']}").json()["audio_seconds"] > 0)
    crowded.set()
    asked = {**given, "input": "one two three. " * 3, "response_format": "pcm"}
    url = f"{batch_server.url}/v1/audio/speech"
    with ThreadPoolExecutor(6) as threads:
        answers = list(threads.map(lambda _: httpx2.post(url, json=asked, timeout=60), range(6)))

    assert {answer.status_code for answer in answers} == {200}
    assert spoken_to[0] == 3
    until(lambda: httpx2.get(f"{jobs}/{job['id']}").json()["state"] == "done", 90)
    expected = pcm16(batch_tts.generate(text, seed=1, **FEW_STEPS))
    assert httpx2.get(f"{jobs}/{job['id']}/audio").content == expected.astype("<i2").tobytes()
