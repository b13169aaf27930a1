"""Words that speech lacks: in headers, events, the websocket and metrics."""

import json

import httpx2
import pytest
from websockets.sync.client import connect

TEXT = "Hello there, my friend. How are you today?"
pytestmark = pytest.mark.filterwarnings("ignore:segment")
ASKED = {"model": "tts-1", "input": TEXT, "voice": "emma", "seed": 0, "response_format": "pcm"}
UNSAID = [
    {"word": "How", "place": 24}, {"word": "are", "place": 28}, {"word": "you", "place": 32},
    {"word": "today?", "place": 36},
]  # fmt: skip


@pytest.fixture
def _believing(monkeypatch):
    """The stop head, which ends this speech after "friend.", is believed at once, and nothing is retried."""
    monkeypatch.setattr("voxcpm_runtime.words.coverage._PATIENCE", -100)
    monkeypatch.setattr("voxcpm_runtime.speech.attempts._missed", lambda _: 0)


def events(url):
    answer = httpx2.post(f"{url}/v1/audio/speech", json={**ASKED, "stream_format": "sse"})
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


@pytest.mark.usefixtures("_believing")
def test_headers_and_events_have_them(server):
    whole = httpx2.post(
        f"{server.url}/v1/audio/speech", json={**ASKED, "stream": False, "word_timestamps": True}
    )
    assert json.loads(whole.headers["X-Unsaid-Words"]) == UNSAID
    assert "X-Repeated-Words" not in whole.headers
    said = [word["word"] for word in json.loads(whole.headers["X-Word-Timestamps"])]
    assert said == ["Hello", "there,", "my", "friend."]
    done = next(event for event in events(server.url) if event["type"] == "speech.audio.done")
    assert (done["unsaid"], "repeated" in done) == (UNSAID, False)


def test_the_websocket_has_them_with_places_in_all_that_was_sent(server, monkeypatch):
    monkeypatch.setattr(
        "voxcpm_runtime.words.coverage.Follower.counts", lambda self: [1] * 8 + [0] * (len(self._said) - 8)
    )
    with connect(f"{server.url.replace('http', 'ws')}/v1/audio/stream") as socket:
        start = {"type": "start", "voice": "emma", "seed": 0, "response_format": "pcm"}
        for message in (start, {"type": "text", "text": TEXT}, {"type": "end"}):
            socket.send(json.dumps(message))
        while isinstance(message := socket.recv(), bytes) or (found := json.loads(message))["type"] != "done":
            pass
    assert [(word["word"], word["place"]) for word in found["unsaid"]] == [
        ("there,", 6), ("my", 13), ("friend.", 16), ("you", 32), ("today?", 36),
    ]  # fmt: skip


def test_complete_speech_has_none_of_this(server):
    whole = httpx2.post(f"{server.url}/v1/audio/speech", json={**ASKED, "stream": False})
    assert not {"x-unsaid-words", "x-repeated-words"} & {name.lower() for name in whole.headers}
    done = next(event for event in events(server.url) if event["type"] == "speech.audio.done")
    assert not {"unsaid", "repeated"} & done.keys()
    cut = httpx2.post(f"{server.url}/v1/audio/speech", json={**ASKED, "every_word": False})
    assert len(cut.content) < 0.7 * len(whole.content)
