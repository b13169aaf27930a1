"""Pipecat's own services speak a text with a server: `pipecat_speech.py SERVICE URL KEY TEXT OUT`.

Writes 16-bit samples at 24 kHz to OUT, and prints a JSON object: seconds until the first audio, words with their
times, errors. It runs in the environment of `make test-clients`, where the project is not installed.
"""

import asyncio
import json
import sys
import time
from pathlib import Path

from pipecat.frames.frames import (
    EndFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TTSAudioRawFrame,
    TTSStoppedFrame,
    TTSTextFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.frame_processor import FrameProcessor
from pipecat.services.elevenlabs.tts import ElevenLabsTTSService
from pipecat.services.openai.tts import OpenAITTSService
from pipecat.workers.runner import WorkerRunner

RATE = 24_000
PATIENCE = 60


class Listener(FrameProcessor):
    """Collects the service's output."""

    def __init__(self):
        super().__init__()
        self.audio = bytearray()
        self.words: list[tuple[str, float]] = []
        self.errors: list[str] = []
        self.first: float | None = None
        self.stopped = asyncio.Event()

    async def process_frame(self, frame, direction):
        await super().process_frame(frame, direction)
        if isinstance(frame, TTSAudioRawFrame):
            self.first = self.first or time.perf_counter()
            self.audio += frame.audio
        elif isinstance(frame, TTSTextFrame):
            self.words.append((frame.text, (frame.pts or 0) / 1e9))
        elif isinstance(frame, TTSStoppedFrame):
            self.stopped.set()
        await self.push_frame(frame, direction)


def service(name, url, key):
    if name == "openai":
        return OpenAITTSService(
            api_key=key, base_url=f"{url}/v1", settings=OpenAITTSService.Settings(voice="alloy")
        )
    return ElevenLabsTTSService(
        api_key=key,
        url=url.replace("http", "ws", 1),
        sample_rate=RATE,
        settings=ElevenLabsTTSService.Settings(voice="alloy"),
    )


async def main(name, url, key, text, out):
    listener = Listener()
    worker = PipelineWorker(
        Pipeline([service(name, url, key), listener]),
        cancel_on_idle_timeout=False,
        params=PipelineParams(audio_out_sample_rate=RATE),
    )
    started = asyncio.Event()

    @worker.event_handler("on_pipeline_started")
    async def _(_worker, _frame):
        started.set()

    @worker.event_handler("on_pipeline_error")
    async def _(_worker, frame):
        listener.errors.append(frame.error)
        listener.stopped.set()

    asked = 0.0

    async def talk():
        nonlocal asked
        await asyncio.wait_for(started.wait(), PATIENCE)
        asked = time.perf_counter()
        # Word by word, like a language model's response.
        words = [LLMTextFrame(f"{word} ") for word in text.split()]
        for frame in (LLMFullResponseStartFrame(), *words, LLMFullResponseEndFrame()):
            await worker.queue_frame(frame)
        await asyncio.wait_for(listener.stopped.wait(), PATIENCE)
        await worker.queue_frame(EndFrame())

    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    await asyncio.gather(runner.run(), talk())
    Path(out).write_bytes(listener.audio)
    told = {
        "first": None if listener.first is None else listener.first - asked,
        "words": listener.words,
        "errors": listener.errors,
    }
    print(json.dumps(told))  # noqa: T201 - its output


asyncio.run(main(*sys.argv[1:]))
