"""Incremental text over the websocket `/v1/audio/stream`."""

import contextlib
import io
import json
import re
import socket
import struct
import threading
import time

import pytest
import soundfile
from websockets.exceptions import ConnectionClosed, InvalidStatus

from heard_words import SAID, SEED, wrong_words
from speech_socket import heard, idle, refusal, said, socket_to, spoken_by
from voxcpm_server.streams.sessions import SessionStream
from waiting import until

TEXT = "Hello there. This is a test of the server."
LONG = "one two three four five six seven eight nine ten, and on we go. "
START = {"type": "start"}
HELLO = {"type": "text", "text": "Hello."}
END = {"type": "end"}


def test_fragments_equal_the_runtimes_session(server, tts):
    expected = spoken_by(tts, SAID, seed=SEED)
    assert wrong_words(expected, tts.sample_rate) <= 3
    for path, fragments in (("/v1/audio/stream", [SAID]), ("/audio/stream", re.findall("...?", SAID))):
        with socket_to(server, path) as connection:
            start = {"type": "start", "seed": SEED, "unknown": 1, "stream": False, "instructions": "slow"}
            said(connection, start)
            said(connection, *({"type": "text", "text": fragment} for fragment in fragments))
            said(connection, END)
            audio, (started, done) = heard(connection)
        assert audio == expected
        assert started == {
            "type": "started",
            "seed": SEED,
            "sample_rate": 24_000,
            "content_type": "audio/pcm",
            "ignored_fields": ["unknown", "stream", "instructions"],
        }
        seconds = round(len(expected) / 2 / 24_000, 3)
        assert done == {"type": "done", "seed": SEED, "seconds": seconds, "cancelled": False}


def test_speech_starts_before_the_text_ends_and_flush_speaks_the_rest(server):
    with socket_to(server) as connection:
        said(connection, {"type": "start"}, {"type": "text", "text": "One. Tw"})
        assert json.loads(connection.recv(timeout=20))["type"] == "started"
        # One sentence is complete.
        assert isinstance(connection.recv(timeout=20), bytes)
        until(lambda: not server.service.queue.busy)
        said(connection, {"type": "text", "text": "o and three"}, {"type": "flush"})
        first = heard(connection, "flushed")[1][-1]["seconds"]
        # Slow text blocks nobody's turn.
        until(lambda: server.service.queue.busy == 0)
        said(connection, {"type": "text", "text": "and four"}, END)
        (done,) = heard(connection)[1]
    assert done["seconds"] > first > 0


def test_connection_is_reused_with_any_format(server, tts):
    with socket_to(server) as connection:
        for form, options in (("wav", {"audio": "base64"}), ("mp3", {"speed": 2})):
            said(connection, {"type": "start", "seed": 3, "response_format": form, **options})
            said(connection, {"type": "text", "text": TEXT}, END)
            audio, (started, done) = heard(connection)
            samples, rate = soundfile.read(io.BytesIO(audio))
            assert (started["sample_rate"], rate) == (24_000, 24_000)
            # The codec adds silence; a WAV file has one header, and samples alone after it.
            assert len(samples) / rate == pytest.approx(done["seconds"], abs=0.0006 if form == "wav" else 0.1)
            seconds = len(spoken_by(tts, TEXT, seed=3)) / 2 / 24_000
            assert done["seconds"] == pytest.approx(seconds / options.get("speed", 1), abs=0.1)


def test_cancel_ends_the_speech_and_the_next_one_starts(server, tts):
    with socket_to(server) as connection:
        said(connection, {"type": "cancel"})
        said(connection, {"type": "start"}, {"type": "text", "text": LONG * 20})
        heard(connection, "started")
        connection.recv(timeout=20)
        said(connection, {"type": "cancel"})
        done = heard(connection)[1][-1]
        assert done["cancelled"] is True
        assert done["seconds"] < 60
        said(connection, {"type": "start", "seed": 7}, {"type": "text", "text": "Hi."}, END)
        assert heard(connection)[0] == spoken_by(tts, "Hi.", seed=7)
    until(lambda: idle(server))


def test_sessions_take_turns_with_requests_and_with_each_other(serve, euler_steps):
    running = serve(concurrency=1, queue=1)
    # The first one speaks long enough: it neither ends nor fills the buffers of a waiting reader.
    euler_steps.go = go = threading.Event()
    with socket_to(running) as first, socket_to(running) as second, socket_to(running) as third:
        said(first, START, {"type": "text", "text": LONG * 40}, END)
        until(lambda: running.service.queue.busy == 1)
        said(second, START, {"type": "text", "text": "Hello."}, END)
        until(lambda: running.service.queue.waiting == 1)
        # The queue is full for requests and for sessions.
        body = {"model": "tts-1", "input": "Hello."}
        assert running.post("/v1/audio/speech", json=body).status_code == 503
        said(third, START)
        error, code = refusal(third)
        assert (error["code"], code) == ("overloaded", 1013)
        said(first, {"type": "cancel"})
        go.set()
        assert heard(first)[1][-1]["cancelled"]
        assert heard(second)[1][-1]["type"] == "done"


def test_disconnecting_ends_the_speech_within_one_euler_step(serve, euler_steps, monkeypatch):
    running = serve(concurrency=1)
    at_end = []
    close = SessionStream.aclose

    async def noted(stream):
        at_end.append(euler_steps.calls)
        await close(stream)

    monkeypatch.setattr(SessionStream, "aclose", noted)
    with socket_to(running) as connection:
        said(connection, START, {"type": "text", "text": LONG * 20})
        heard(connection, "started")
        connection.recv(timeout=20)
        # Without a close frame.
        connection.socket.shutdown(socket.SHUT_RDWR)
    until(lambda: idle(running))
    # The call running at that time may be counted before or after.
    assert euler_steps.calls <= at_end[0] + 1
    until(lambda: 'route="/audio/stream",status="499"} 1.0' in running.metrics())


@contextlib.contextmanager
def slow_reader(running, *messages):
    """A websocket that has sent these messages and reads nothing: the client library reads in the background."""
    with socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.connect(running.address)
        raw.sendall(
            b"GET /v1/audio/stream HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        assert raw.recv(1000).startswith(b"HTTP/1.1 101")
        for message in messages:
            text = json.dumps(message).encode()
            text = text.ljust(200)
            raw.sendall(struct.pack("!BBH", 0x81, 0x80 | 126, len(text)) + bytes(4) + text)
        yield raw


def test_stalled_reader_pauses_the_stream_and_times_out(serve, euler_steps):
    running = serve(concurrency=1, buffer_seconds=1, client_timeout=3, max_characters=100_000)
    with slow_reader(running, {**START, "sample_rate": 48_000}, {"type": "text", "text": LONG * 100}):
        until(lambda: running.service.queue.busy == 1)
        (stream,) = running.service.streams
        until(lambda: stream._session.buffered_seconds > 0.8)
        calls = euler_steps.calls
        until(lambda: idle(running))
    # One more patch, then it timed out: the text would be minutes of speech.
    assert euler_steps.calls <= calls + 20
    assert stream.encoder.samples / 48_000 < 10
    until(lambda: not len(running.service.conversations))


def test_first_audio_seconds_start_with_the_first_complete_sentence(serve):
    running = serve()
    with socket_to(running) as connection:
        said(connection, START, {"type": "text", "text": "Hell"})
        time.sleep(1.5)
        began = time.perf_counter()
        said(connection, {"type": "text", "text": "o. And"})
        while not isinstance(connection.recv(timeout=30), bytes):
            pass
        waited = time.perf_counter() - began
    samples = next(iter(running.service.metrics.first_audio.collect())).samples
    told = {sample.name.rpartition("_")[2]: sample.value for sample in samples}
    assert told["count"] == 1
    assert 0 < told["sum"] <= waited


def test_metrics_count_websockets(serve):
    running = serve()
    with socket_to(running) as connection:
        said(connection, START, {"type": "text", "text": "Hello."}, END)
        heard(connection)
    with socket_to(running) as connection:
        said(connection, {"type": "nonsense"})
        refusal(connection)

    def told():
        return running.metrics()

    # Closing by the client counts as a disconnect, as for requests.
    until(lambda: 'route="/audio/stream",status="400"} 1.0' in told())
    until(lambda: "voxcpm_conversations 0.0" in told())
    text = told()
    assert 'voxcpm_speeches_total{outcome="finished"} 1.0' in text
    assert "voxcpm_first_audio_seconds_count 1.0" in text
    assert "voxcpm_real_time_factor_count 1.0" in text


@pytest.mark.parametrize(
    ("messages", "words", "param"),
    [
        (["[" * 50_000], "a JSON object", None),
        ([b"\x00\xff"], "got a binary one", None),
        ([{}], "expected start, text", "type"),
        ([HELLO], "send start first", "type"),
        ([START, START], "a speech is in progress", "type"),
        ([START, {"type": "text", "text": LONG}, END, HELLO], "send start first", "type"),
        ([START, {"type": "text", "text": 5}], "expected a string", "text"),
        ([START, *[{"type": "text", "text": "a" * 2049}] * 2], "at most 4096 characters", "text"),
        ([START, {"type": "text", "text": "Hi \ud83d"}, END], "not valid Unicode", "text"),
        ([{**START, "strict": True}, {"type": "text", "text": "漢字。"}, END], "letters a to z", "text"),
        ([{**START, "model": "tts-9"}], "expected one of voxcpm", "model"),
        ([{**START, "sample_rate": 12_345, "response_format": "mp3"}], "mp3 supports 8000", "sample_rate"),
        ([{**START, "audio": "paper"}], "'binary' or 'base64'", "audio"),
    ],
)
def test_invalid_messages_are_explained(messages, words, param, server):
    with socket_to(server) as connection:
        for message in messages:
            connection.send(json.dumps(message) if isinstance(message, dict) else message)
        error, code = refusal(connection)
    assert words in error["message"]
    assert error["param"] == param
    assert code == 1008
    until(lambda: idle(server))


def test_oversized_message_is_rejected_by_its_header(server):
    with socket_to(server) as connection:
        # The header of a masked text frame of that many bytes, and at most a thousandth of them.
        connection.socket.sendall(struct.pack("!BBQ", 0x81, 0xFF, 100_000_000) + b"mask" + bytes(100_000))
        with pytest.raises(ConnectionClosed) as closed:
            connection.recv(timeout=10)
    assert closed.value.rcvd.code == 1009


def test_overlong_speech_is_ended(serve):
    running = serve(max_audio_seconds=1)
    with socket_to(running) as connection:
        said(connection, START, {"type": "text", "text": LONG}, END)
        error, _ = refusal(connection)
    assert error["code"] == "speech_too_long"


def test_idle_connection_is_closed(serve):
    running = serve(idle_seconds=1)
    with socket_to(running) as connection:
        # Speaking takes longer than that.
        said(connection, START, {"type": "text", "text": LONG}, {"type": "flush"})
        assert heard(connection, "flushed")[1][-1]["type"] == "flushed"
        spoken_at = time.monotonic()
        error, code = refusal(connection)
    # The timeout starts with the last message of either side.
    assert time.monotonic() - spoken_at > 0.5
    assert "idle for 1 s" in error["message"]
    assert (error["code"], code) == ("timeout", 1008)


def test_connections_are_limited(serve):
    running = serve(keys=("a", "b", "c"), max_conversations=2)
    with contextlib.ExitStack() as stack:

        def opened(key):
            headers = {"Authorization": f"Bearer {key}"}
            return stack.enter_context(socket_to(running, additional_headers=headers))

        opened("a")
        with pytest.raises(InvalidStatus) as own:
            opened("a")
        assert own.value.response.status_code == 429
        said(opened("b"), START)
        with pytest.raises(InvalidStatus) as anyones:
            opened("c")
        assert anyones.value.response.status_code == 503
        assert json.loads(anyones.value.response.body)["error"]["type"] == "server_error"
        assert int(anyones.value.response.headers["Retry-After"]) >= 1
    until(lambda: not len(running.service.conversations))


def test_keys_are_accepted_in_each_conventional_form(serve):
    running = serve(keys=("secret",))

    def status(**options):
        try:
            with socket_to(running, **options) as connection:
                return 101 if connection.subprotocol in (None, "speech") else 0
        except InvalidStatus as refused:
            return refused.response.status_code if "www-authenticate" in refused.response.headers else 0

    def offered(key):
        return {"subprotocols": ["speech", f"openai-insecure-api-key.{key}"]}

    assert status() == 401
    assert status(additional_headers={"Authorization": "Bearer wrong"}) == 401
    assert status(additional_headers={"xi-api-key": "wrong"}) == 401
    assert status(**offered("wrong")) == 401
    assert status(additional_headers={"Authorization": "Bearer secret"}) == 101
    assert status(additional_headers={"xi-api-key": "secret"}) == 101
    assert status(**offered("secret")) == 101


@pytest.mark.parametrize(
    ("path", "origin", "status", "kind"),
    [("/v1/audio/nothing", None, 404, "not_found"), ("/v1/audio/stream", "https://example.org", 403, None)],
)
def test_rejected_handshake_has_a_response_and_logs_nothing(path, origin, status, kind, server, caplog):
    with pytest.raises(InvalidStatus) as refused, socket_to(server, path, origin=origin):
        pass
    assert refused.value.response.status_code == status
    assert json.loads(refused.value.response.body)["error"]["code"] == kind
    # Logging would follow the response.
    time.sleep(0.2)
    assert not caplog.records


def test_no_conversation_begins_during_shutdown(server, monkeypatch):
    monkeypatch.setattr(server.service.conversations, "draining", True)
    with pytest.raises(InvalidStatus) as refused, socket_to(server):
        pass
    assert refused.value.response.status_code == 503


@pytest.mark.long
def test_speed_of_a_stream_excludes_a_slow_reader(serve):
    running = serve(buffer_seconds=1)
    messages = ({**START, "sample_rate": 48_000}, {"type": "text", "text": LONG * 10}, END)
    with slow_reader(running, *messages) as raw:
        until(lambda: running.service.streams)
        (stream,) = running.service.streams
        until(lambda: stream._session.buffered_seconds > 0.8)
        raw.setblocking(False)

        def told():
            with contextlib.suppress(BlockingIOError):
                raw.recv(1 << 20)
            return running.metrics()

        until(lambda: 'voxcpm_speeches_total{outcome="finished"} 1.0' in told())
        assert "voxcpm_real_time_factor_count 0.0" in told()
