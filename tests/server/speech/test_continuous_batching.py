"""A bundle with slots: requests join while others are spoken to, and each gets what it would get alone."""

from __future__ import annotations

import contextlib
import gc
import json
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import numpy as np
import pytest
from websockets.sync.client import connect

from server_on_loopback import ServerOnLoopback
from voxcpm_constants.step_models import BASE_LM_STEP, LOCDIT_STEP
from voxcpm_runtime import CancelToken, VoxCPM
from voxcpm_server.speech.encoding import Encoder
from waiting import until

ARRIVALS = 16
FEW_STEPS: Any = {"inference_timesteps": 2}
# Random weights say nothing that has the length of its text.
pytestmark = pytest.mark.filterwarnings("ignore::voxcpm_runtime.speech.results.SuspiciousWarning")


def request(rng: np.random.Generator) -> dict[str, Any]:
    return {
        "model": "tts-1",
        "input": str(rng.choice(["a.", "b c.", "d?", "e!"])),
        "response_format": "pcm",
        "seed": int(rng.integers(100)),
        "inference_timesteps": int(rng.choice([2, 3])),
        "cfg_value": float(rng.choice([1.0, 2.0])),
        "stream": bool(rng.random() < 0.8),
    }


def alone(tts: VoxCPM, asked: dict[str, Any]) -> bytes:
    given = {name: asked[name] for name in ("seed", "inference_timesteps", "cfg_value")}
    audio = tts.generate(asked["input"], **given, **({"retry_badcase": False} if asked["stream"] else {}))
    encoder = Encoder("pcm", tts.sample_rate)
    return encoder.encode(audio) + encoder.finish()


def test_whoever_comes_and_goes_each_answer_is_what_it_is_alone(
    batch_server: ServerOnLoopback, batch_tts: VoxCPM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random arrivals, of which some go away in the middle; all others are whole and equal, and calls are shared."""
    models: Any = batch_tts.batch_driver.models
    calls, step = [0], models[LOCDIT_STEP]

    def counted(inputs: Any, state: Any = None) -> Any:
        calls[0] += 1
        return step(inputs, state)

    monkeypatch.setitem(models, LOCDIT_STEP, counted)
    rng = np.random.default_rng(3)
    arrivals = [(request(rng), float(rng.random()), bool(rng.random() < 0.25)) for _ in range(ARRIVALS)]
    most = [0]

    def ask(arrival: tuple[dict[str, Any], float, bool]) -> bytes:
        asked, after, goes_away = arrival
        time.sleep(after)
        url = f"{batch_server.url}/v1/audio/speech"
        with httpx2.stream("POST", url, json=asked, timeout=60) as answer:
            assert answer.status_code == 200, answer.read()
            most[0] = max(most[0], batch_server.service.queue.busy)
            if goes_away:
                return next(answer.iter_bytes(), b"")
            return answer.read()

    with ThreadPoolExecutor(ARRIVALS) as threads:
        answers = list(threads.map(ask, arrivals))
    together, calls[0] = calls[0], 0

    for (asked, _, goes_away), answer in zip(arrivals, answers, strict=True):
        expected = alone(batch_tts, asked)
        assert answer == (expected[: len(answer)] if goes_away else expected), asked
    assert most[0] == 3
    # Nobody goes away here, but only two or three of them are that long.
    assert together < 0.8 * calls[0]


def told(running: ServerOnLoopback, path: str, *messages: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What a websocket says, bytes as `audio`, until the test has enough."""
    url = running.url.replace("http", "ws")
    with connect(f"{url}{path}", max_size=None, close_timeout=5) as connection:
        for message in messages:
            connection.send(json.dumps(message))
        while True:
            said = connection.recv(timeout=60)
            yield {"type": "audio", "audio": said} if isinstance(said, bytes) else json.loads(said)


def of_the_stream(running: ServerOnLoopback, rate: int, text: str, seed: int) -> bytes:
    start = {"type": "start", "seed": seed, "sample_rate": rate, **FEW_STEPS}
    messages = (start, *({"type": "text", "text": part} for part in text.partition(" ")), {"type": "end"})
    audio = b""
    for message in told(running, "/v1/audio/stream", *messages):
        assert message["type"] in ("started", "audio", "done"), message
        if message["type"] == "done":
            break
        audio += message.get("audio", b"")
    return audio


@pytest.mark.long
def test_requests_and_websockets_share_the_batch_and_sound_as_each_does_alone(
    batch_server: ServerOnLoopback, batch_tts: VoxCPM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them at random times."""
    models: Any = batch_tts.batch_driver.models
    calls, step, rate = [0], models[LOCDIT_STEP], batch_tts.sample_rate

    def counted(inputs: Any, state: Any = None) -> Any:
        calls[0] += 1
        return step(inputs, state)

    monkeypatch.setitem(models, LOCDIT_STEP, counted)
    rng = np.random.default_rng(5)
    texts = [str(text) for text in rng.choice(["a. b?", "c d. e!", "f?"], 5)]
    streams = [(text, seed, float(rng.random())) for seed, text in enumerate(texts)]
    requests = [(request(rng), float(rng.random())) for _ in range(4)]

    def beside(*_: object) -> None:
        raise AssertionError("somebody speaks beside the batch")

    def ask(text: str, seed: int, after: float) -> bytes:
        time.sleep(after)
        return of_the_stream(batch_server, rate, text, seed)

    def ask_once(asked: dict[str, Any], after: float) -> bytes:
        time.sleep(after)
        return httpx2.post(f"{batch_server.url}/v1/audio/speech", json=asked, timeout=60).content

    with ThreadPoolExecutor(len(streams) + len(requests)) as threads, monkeypatch.context() as alone_in_it:
        alone_in_it.setattr(batch_tts, "speak_plan", beside)
        alone_in_it.setattr(batch_tts, "stream_plan", beside)
        asking = [threads.submit(ask, *each) for each in streams]
        asking_once = [threads.submit(ask_once, *each) for each in requests]
        answers = [one.result() for one in asking]
        answers_once = [one.result() for one in asking_once]
    together, calls[0] = calls[0], 0

    for (asked, _), answer in zip(requests, answers_once, strict=True):
        assert answer == alone(batch_tts, asked), asked
    for (text, seed, _), answer in zip(streams, answers, strict=True):
        with batch_tts.session(seed=seed, **FEW_STEPS) as session:
            session.push_text(text)
            session.flush()
            expected = np.concatenate([chunk.pcm for chunk in session])
        assert answer == expected.astype("<i2").tobytes(), (text, seed)
    # How many are shared depends on who comes when.
    assert together < calls[0]
    until(lambda: batch_server.service.queue.busy == 0)


def test_it_speaks_to_as_many_as_the_bundle_has_slots(
    batch_server: ServerOnLoopback, serve: Callable[..., ServerOnLoopback]
) -> None:
    assert batch_server.service.queue._turns == 3
    assert serve().service.queue._turns == 2
    assert serve(concurrency=1).service.queue._turns == 1


def test_a_client_that_goes_away_makes_its_slot_free_within_one_euler_step(
    batch_server: ServerOnLoopback, batch_tts: VoxCPM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream and a whole answer are cancelled while a third request speaks on."""
    models: Any = batch_tts.batch_driver.models
    calls, at_cancellation = [0], []
    step, cancel = models[LOCDIT_STEP], CancelToken.cancel

    def counted(inputs: Any, state: Any = None) -> Any:
        calls[0] += 1
        # The more of a speech is left, the surer it is that it was cancelled.
        time.sleep(0.01)
        return step(inputs, state)

    def noted(token: CancelToken) -> None:
        at_cancellation.append(calls[0])
        cancel(token)

    monkeypatch.setitem(models, LOCDIT_STEP, counted)
    queue, given = batch_server.service.queue, {"model": "tts-1", "input": "one two three. " * 12, "seed": 1}
    url = f"{batch_server.url}/v1/audio/speech"
    with httpx2.Client(timeout=60) as client, contextlib.ExitStack() as stack:
        stays = stack.enter_context(client.stream("POST", url, json={**given, "response_format": "pcm"}))
        parts = stays.iter_bytes(64)
        next(parts)
        with httpx2.stream("POST", url, json={**given, "response_format": "pcm"}, timeout=60) as answer:
            next(answer.iter_bytes(64))
            assert queue.busy == 2
            monkeypatch.setattr(CancelToken, "cancel", noted)
        until(lambda: queue.busy == 1)
        ended = calls[0]
        monkeypatch.setattr(CancelToken, "cancel", cancel)

        # The other one goes on: its calls of the meantime count, too.
        assert ended <= at_cancellation[0] + 5
        with pytest.raises(httpx2.ReadTimeout):
            httpx2.post(url, json={**given, "stream": False}, timeout=0.5)
        until(lambda: queue.busy == 1)
        next(parts)
    until(lambda: queue.busy == 0)


def test_first_audio_comes_before_others_end(batch_server: ServerOnLoopback) -> None:
    url = f"{batch_server.url}/v1/audio/speech"
    given = {"model": "tts-1", "response_format": "pcm", "seed": 1, "inference_timesteps": 2}
    with httpx2.stream("POST", url, json={**given, "input": "one two three. " * 3}, timeout=60) as first:
        parts = first.iter_bytes(64)
        next(parts)
        short = httpx2.post(url, json={**given, "input": "a."}, timeout=60)
        assert short.status_code == 200
        until(lambda: batch_server.service.queue.busy == 1)
        assert sum(map(len, parts)) > len(short.content)


def test_a_cancelled_speech_leaves_no_caches(
    serve: Callable[..., ServerOnLoopback], tts: VoxCPM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The garbage collector would free them, but under load only after minutes."""
    running, models = serve(), tts.batch_driver.models
    step, caches = models[BASE_LM_STEP], []

    class Noted:
        def new_state(self) -> Any:
            state = step.new_state()
            caches.append(weakref.ref(state))
            return state

        def __call__(self, inputs: Any, state: Any = None) -> Any:
            return step(inputs, state)

    monkeypatch.setitem(models, BASE_LM_STEP, Noted())  # type: ignore[arg-type]
    given = {"model": "tts-1", "input": "one two three. " * 9, "response_format": "pcm"}
    gc.disable()
    try:
        for _ in range(3):
            with httpx2.stream("POST", f"{running.url}/v1/audio/speech", json=given, timeout=60) as answer:
                next(answer.iter_bytes(64))
            until(lambda: running.service.queue.busy == 0)
        assert len(caches) == 3
        until(lambda: not any(cache() for cache in caches), 5)
    finally:
        gc.enable()
