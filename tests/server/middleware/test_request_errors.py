"""Errors of requests: one line, in OpenAI's format."""

import base64
import errno
import io
import json
import warnings

import httpx2
import numpy as np
import pytest
import soundfile
from prometheus_client import generate_latest
from starlette.datastructures import UploadFile

from voxcpm_runtime import BundleError, SuspiciousWarning, Word
from voxcpm_runtime.speech.results import WordsWarning
from voxcpm_server.middleware.metrics import Metrics, count_suspicious_warnings
from voxcpm_server.speech.queueing import FairQueue
from waiting import until

SAID = {"model": "tts-1", "voice": "alloy", "input": "Hello."}


def audio_file(seconds, rate=16_000, form="WAV"):
    file = io.BytesIO()
    soundfile.write(file, np.sin(np.arange(int(seconds * rate)) / 10) / 2, rate, format=form)
    return file.getvalue()


def prompt(content, text="a"):
    return {"prompt_audio": base64.b64encode(content).decode(), "prompt_text": text}


@pytest.mark.parametrize(
    ("fields", "status", "param", "words"),
    [
        ({"input": ""}, 400, "input", "at least 1 character"),
        ({"input": " \n"}, 400, "input", "empty"),
        ({"input": "Привет.", "strict": True}, 400, "input", "letters a to z only"),
        ({"input": "a" * 4097}, 400, "input", "at most 4096 characters, got 4097"),
        ({"model": "tts-9"}, 404, "model", "expected one of voxcpm, tts-1"),
        ({"voice": {"id": "nobody"}}, 404, "voice", "unknown voice 'nobody'"),
        ({"voice": 5}, 400, "voice", 'expected a name, or {"id": name}'),
        ({"voice": "../../etc/passwd"}, 400, "voice", "letters, digits"),
        ({"response_format": "wma"}, 400, "response_format", "'mp3', 'opus'"),
        ({"cfg_value": 99}, 400, "cfg_value", "cfg_value must be a number from 0 to 10"),
        ({"sample_rate": 12_345, "response_format": "mp3"}, 400, "sample_rate", "mp3 supports 8000"),
        ({"prompt_audio": "§", "prompt_text": "Hi."}, 400, "prompt_audio", "in base64"),
        ({"prompt_text": "Hi."}, 400, None, "transcript without the audio"),
        ({**prompt(audio_file(1), "Привет."), "strict": True}, 400, "prompt_text", "letters a to z only"),
        ({"reference_audio": prompt(audio_file(1))["prompt_audio"]}, 400, None, "VoxCPM2"),
        (prompt(audio_file(61)), 400, "prompt_audio", "longer than 60 s"),
        (prompt(audio_file(0.01, 1_000_000)), 400, "prompt_audio", "8000 to 192000 Hz"),
    ],
)
def test_invalid_requests_are_explained(fields, status, param, words, server):
    answer = server.post("/v1/audio/speech", json={**SAID, **fields})
    error = answer.json()["error"]
    assert answer.status_code == status, error
    assert error["param"] == param
    assert words in error["message"]
    assert "\n" not in error["message"]
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("files", "data", "status", "words"),
    [
        ({"prompt_audio": b"RIFF"}, {"prompt_text": "Hi."}, 400, "cannot be read"),
        ({"notes": b"a"}, {}, 400, "notes: expected text"),
        ({"prompt_audio": b"a", "reference_audio": b"a", "third": b"a"}, {}, 400, "Too many files"),
        ({}, {f"field{i}": "a" for i in range(70)}, 400, "Too many fields"),
        ({"reference_audio": b"a"}, {"speed": "fast"}, 400, "speed: "),
    ],
)
def test_invalid_forms_are_explained(files, data, status, words, server):
    # Without a file, httpx2 would send a urlencoded form.
    given = files or {"prompt_audio": b""}
    answer = server.post("/v1/audio/speech", data={**SAID, **data}, files=given)
    assert answer.status_code == status, answer.text
    assert words in answer.json()["error"]["message"]


def test_unknown_paths_and_methods_use_openais_error_format(server):
    for path, status in (("/v1/nothing", 404), ("/v1/audio/speech", 405)):
        answer = server.get(path)
        assert (answer.status_code, answer.json()["error"]["type"]) == (status, "invalid_request_error")


def broken_off(running, asked):
    """The lines of a truncated response."""
    lines = []
    with (
        pytest.raises(httpx2.RemoteProtocolError),
        httpx2.stream("POST", f"{running.url}/v1/audio/speech", json=asked) as answer,
    ):
        lines.extend(filter(None, answer.iter_lines()))
    return lines


def test_overlong_speech_is_ended(serve):
    running = serve(max_audio_seconds=1)
    said = {**SAID, "input": "one two three four five six seven eight nine ten. " * 2}
    answer = running.post("/v1/audio/speech", json={**said, "stream": False})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "speech_too_long"
    # Pauses count, also after the last word and in formats with a rate of their own.
    for paused in ("Hi. [pause 60s]", "[pause 60s] Hi.", "[pause 60s]" * 200 + "Hi."):
        silent = {**SAID, "input": paused, "markup": True, "stream": False, "sample_rate": 8000}
        answer = running.post("/v1/audio/speech", json={**silent, "response_format": "wav"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "speech_too_long")
    # The status has been sent, so the response is truncated; events carry the error.
    lines = broken_off(running, {**said, "stream_format": "sse"})
    last = json.loads(lines[-1].removeprefix("data: "))
    assert last["type"] == "error"
    assert last["error"]["code"] == "speech_too_long"
    with pytest.raises(httpx2.RemoteProtocolError):
        running.post("/v1/audio/speech", json=said)
    counted = 'voxcpm_requests_total{route="/audio/speech",status="400"} 6.0'
    until(lambda: counted in running.metrics())


def test_bundle_failures_send_retry_after(serve, tts, caplog, monkeypatch):
    def failing(*_):
        raise BundleError("/secret/bundle: not enough memory")

    monkeypatch.setattr(tts, "plan_request", failing)
    answer = httpx2.post(f"{serve().url}/v1/audio/speech", json=SAID)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_unavailable")
    assert int(answer.headers["retry-after"]) >= 1
    assert "secret" not in answer.text
    assert "/secret/bundle: not enough memory" in caplog.text


def test_unexpected_errors_log_one_line_without_the_text(serve, tts, caplog, monkeypatch):
    running = serve()

    def broken(*_, **__):
        raise ZeroDivisionError("secret words")

    def broken_later(*_, **__):
        yield np.zeros(100, np.float32)
        broken()

    monkeypatch.setattr(tts, "stream_plan", broken_later)
    events = "\n".join(broken_off(running, {**SAID, "stream_format": "sse"}))
    with pytest.raises(httpx2.RemoteProtocolError):
        running.post("/v1/audio/speech", json={**SAID, "response_format": "pcm"})
    assert events.count('"server_error"') == 1
    assert "secret" not in events + caplog.text
    assert caplog.text.count("ZeroDivisionError at ") == 2
    monkeypatch.setattr(tts, "plan_request", broken)
    answer = running.post("/v1/audio/speech", json=SAID)
    assert answer.status_code == 500
    assert answer.json()["error"]["type"] == "server_error"
    assert "secret" not in answer.text + caplog.text
    assert "ZeroDivisionError at " in caplog.text
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("path", ["speech", "voices"])
def test_spooling_errors_are_507(path, serve, monkeypatch):
    async def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    running = serve()
    monkeypatch.setattr(UploadFile, "write", full)
    files = {"audio_sample" if path == "voices" else "reference_audio": ("a.wav", b"a" * 100)}
    answer = running.post(f"/v1/audio/{path}", data={"input": "a", "name": "a"}, files=files)
    assert (answer.status_code, answer.json()["error"]["code"]) == (507, "storage")


UNSAID_AND_REPEATED = [Word("a", 0.0, 0.0, "attention", said=said) for said in (0, 0, 2, 3)]


@pytest.mark.parametrize(
    ("warning", "counted"),
    [
        (SuspiciousWarning("what the user wrote"), ["voxcpm_suspicious_total 1.0"]),
        (WordsWarning(1, UNSAID_AND_REPEATED), ['{kind="unsaid"} 2.0', '{kind="repeated"} 2.0']),
    ],
)
def test_warnings_about_speech_are_counted_and_not_printed(warning, counted, capsys):
    metrics = Metrics(FairQueue(1, 1, 1), (), lambda: 1)
    with count_suspicious_warnings(metrics):
        warnings.warn(warning, stacklevel=1)
    told = generate_latest(metrics.registry).decode()
    assert all(line in told for line in counted)
    assert capsys.readouterr().err == ""
