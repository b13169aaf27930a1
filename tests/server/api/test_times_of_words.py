"""When words are said, over HTTP and the websocket: in the forms of vllm-omni and Kokoro-FastAPI."""

import base64
import io
import json

import av
import httpx2
import numpy as np
import pytest
from websockets.sync.client import connect

from heard_words import SEED
from voxcpm_runtime import Word
from voxcpm_server.speech.encoding import Encoder

TEXT = "It costs $4.20. Really?"
REQUEST = {"model": "tts-1", "input": TEXT, "voice": "emma", "seed": SEED, "response_format": "wav"}


@pytest.fixture(scope="module")
def words(tts):
    return tts.speak(TEXT, voice="emma", seed=SEED).words


def milliseconds(words):
    return [{"word": w.text, "start_ms": round(1000 * w.start), "end_ms": round(1000 * w.end)} for w in words]


@pytest.mark.parametrize("speed", [1, 2])
def test_a_header_has_them_and_the_audio_is_whole(server, tts, speed):
    asked = {**REQUEST, "word_timestamps": True, "speed": speed}
    answer = httpx2.post(f"{server.url}/v1/audio/speech", json=asked)
    found = json.loads(answer.headers["X-Word-Timestamps"])
    assert [word["word"] for word in found] == ["It", "costs", "$4.20.", "Really?"]
    assert found == milliseconds(tts.speak(TEXT, voice="emma", seed=SEED, speed=float(speed)).words)
    assert found[-1]["end_ms"] <= 1000 * float(answer.headers["X-Audio-Duration"])


def test_a_long_header_is_left_out_and_said_so(server, monkeypatch):
    monkeypatch.setattr("voxcpm_server.speech.speech_responses._MAX_TIMESTAMPS", 100)
    answer = httpx2.post(f"{server.url}/v1/audio/speech", json={**REQUEST, "word_timestamps": True})
    assert "X-Word-Timestamps" not in answer.headers
    assert answer.headers["X-Word-Timestamps-Omitted"] == "true"


def test_events_have_them_only_if_they_are_asked_for(server, words):
    def events(**fields):
        asked = {**REQUEST, "stream_format": "sse", **fields}
        answer = httpx2.post(f"{server.url}/v1/audio/speech", json=asked)
        lines = [
            line.removeprefix("data: ") for line in answer.text.split("\n\n") if line.startswith("data: {")
        ]
        return [json.loads(line) for line in lines]

    found = events(word_timestamps=True)
    assert [e for e in found if e["type"] == "speech.audio.timestamps"] == [
        {"type": "speech.audio.timestamps", "words": milliseconds(words), "method": words[0].method}
    ]
    assert events() == [event for event in found if event["type"] != "speech.audio.timestamps"]


@pytest.mark.parametrize("streamed", [False, True])
def test_captioned_speech_as_kokoros_clients_ask_for_it(server, words, streamed):
    asked = {**REQUEST, "model": "kokoro", "stream": streamed, "return_timestamps": True}
    answer = httpx2.post(f"{server.url}/dev/captioned_speech", json=asked)
    lines = [json.loads(line) for line in answer.text.strip().split("\n")]
    assert (len(lines) > 1) == streamed
    assert {line["audio_format"] for line in lines} == {"audio/wav"}
    assert b"".join(base64.b64decode(line["audio"]) for line in lines).startswith(b"RIFF")
    assert [word for line in lines for word in line["timestamps"]] == [
        {"word": word.text, "start_time": word.start, "end_time": word.end} for word in words
    ]


def test_a_websocket_sends_them_after_the_audio_of_their_sentence(server):
    url = f"{server.url.replace('http', 'ws')}/v1/audio/stream"
    with connect(url) as connection:
        start = {"type": "start", "voice": "emma", "seed": SEED, "word_timestamps": True}
        for message in (start, {"type": "text", "text": TEXT}, {"type": "end"}):
            connection.send(json.dumps(message))
        messages = []
        while not messages or messages[-1].get("type") not in ("done", "error"):
            message = connection.recv(timeout=30)
            messages.append({"type": "audio"} if isinstance(message, bytes) else json.loads(message))
    kinds = [message["type"] for message in messages]
    assert kinds.count("timestamps") == 2
    assert kinds[kinds.index("timestamps") - 1] == "audio"
    said = [
        word["word"] for message in messages if message["type"] == "timestamps" for word in message["words"]
    ]
    assert said == ["It", "costs", "$4.20.", "Really?"]


@pytest.mark.parametrize("form", ["mp3", "aac", "opus", "flac", "wav"])
def test_times_are_those_of_the_decoded_audio(form):
    """MP3 and AAC begin with samples of their own."""
    audio = np.zeros(24000, np.float32)
    audio[12000:12240] = 0.8 * np.sin(np.arange(240) / 2)
    encoder = Encoder(form, 24000)
    encoded = encoder.header() + encoder.encode(audio) + encoder.finish()
    container = av.open(io.BytesIO(encoded))
    frames = [frame.to_ndarray()[0].astype(float) for frame in container.decode(audio=0)]
    decoded = np.abs(np.concatenate(frames))
    (word,) = encoder.heard([Word("tick", 0.5, 0.51, "pauses")])
    onset = np.argmax(decoded > 0.3 * decoded.max()) / container.streams.audio[0].rate
    assert word.start == pytest.approx(onset, abs=0.003)
