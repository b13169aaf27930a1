"""Wyoming: its own client, and hostile clients."""

import asyncio
import contextlib
import json
import re
import signal
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.client import AsyncTcpClient
from wyoming.error import Error
from wyoming.info import Describe, Info
from wyoming.ping import Ping, Pong
from wyoming.tts import (
    Synthesize,
    SynthesizeChunk,
    SynthesizeStart,
    SynthesizeStop,
    SynthesizeStopped,
    SynthesizeVoice,
)

from heard_words import SAID, SEED, wrong_words
from server_on_loopback import ServerOnLoopback, is_refused, raw_answer
from speech_socket import spoken_by
from voxcpm_server.rooms import AllSettings as Settings
from voxcpm_server.wyoming.server import Wyoming
from waiting import until

EVERYWHERE = "0.0.0.0"  # noqa: S104 - nothing listens there
LONG = "one two three four five six seven eight nine ten, and on we go. "


def exchanged(server, *events, last=AudioStop.is_type):
    """The server's responses to these events, up to that type, an error, or the end of the connection."""

    async def talk():
        answers = []
        async with AsyncTcpClient("127.0.0.1", server.ports["wyoming"], read_timeout=30) as client:
            for event in events:
                await client.write_event(event.event())
            while not answers or not (last(answers[-1].type) or Error.is_type(answers[-1].type)):
                answer = await client.read_event()
                if answer is None:
                    break
                answers.append(answer)
        return answers

    return asyncio.run(talk())


@pytest.mark.anyio
@pytest.mark.skipif(sys.platform != "linux", reason="other systems have one address of loopback")
async def test_idle_clients_of_one_host_do_not_block_others(serve):
    """With several keys, one owner may have half of the conversations."""
    running = serve(keys=("a", "b"), max_conversations=4)

    async def pinged(host):
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", running.ports["wyoming"], local_addr=(host, 0)
        )
        writer.write(b'{"type": "ping"}\n')
        return writer, json.loads(await asyncio.wait_for(reader.readline(), 20))

    hosts = ("127.0.0.1", "127.0.0.1", "127.0.0.1", "127.0.0.2")
    connections = [await pinged(host) for host in hosts]
    for writer, _ in connections:
        writer.close()
    assert [answer["type"] for _, answer in connections] == ["pong", "pong", "error", "pong"]


def pcm_of(events):
    return b"".join(AudioChunk.from_event(e).audio for e in events if AudioChunk.is_type(e.type))


def test_describe_returns_info(server):
    # Microphone audio is ignored.
    (answer,) = exchanged(server, AudioChunk(16_000, 2, 1, bytes(1000)), Describe(), last=Info.is_type)
    (program,) = Info.from_event(answer).tts
    assert program.installed
    assert program.supports_synthesize_streaming
    assert {"default", "alloy"} <= {voice.name for voice in program.voices}
    assert all(voice.installed and voice.languages == ["en"] for voice in program.voices)
    (pong,) = exchanged(server, Ping("hello"), last=Pong.is_type)
    assert Pong.from_event(pong).text == "hello"


@pytest.mark.usefixtures("seeded")
def test_synthesize(server, tts):
    first, rest = SAID.split(" ", 1)
    text = f"[{first}](https://example.com/a) {rest}"
    start, *chunks, stop = exchanged(server, Synthesize(text, voice=SynthesizeVoice(name="default")))
    assert AudioStart.from_event(start).rate == tts.sample_rate
    assert AudioStop.is_type(stop.type)
    pcm = pcm_of(chunks)
    assert pcm == spoken_by(tts, SAID, seed=SEED)
    assert wrong_words(pcm, tts.sample_rate) <= 3
    times = [AudioChunk.from_event(chunk).timestamp for chunk in chunks]
    assert times == sorted(times)
    assert times[-1] < len(pcm) / 2 / tts.sample_rate * 1000


@pytest.mark.anyio
@pytest.mark.usefixtures("seeded")
async def test_streaming_synthesis(server, tts):
    answers = []
    async with AsyncTcpClient("127.0.0.1", server.ports["wyoming"], read_timeout=30) as client:

        async def say(*events):
            for event in events:
                await client.write_event(event.event())

        async def hear(kind):
            while not (answers and kind.is_type(answers[-1].type)):
                answers.append(await client.read_event())

        await say(SynthesizeStart(), SynthesizeChunk("Hello the"), SynthesizeChunk("re. How"))
        await hear(AudioChunk)
        # Audio arrives before the text ends. Home Assistant repeats the whole text before stopping.
        await say(SynthesizeChunk(" are you?"), Synthesize("Hello there. How are you?"), SynthesizeStop())
        await hear(SynthesizeStopped)
        # The connection is reused for a text that is not streamed.
        await say(Synthesize("Hi."))
        await hear(AudioStop)
        await say(Ping("end"))
        await hear(Pong)
    expected = [spoken_by(tts, text, seed=SEED) for text in ("Hello there. How are you?", "Hi.")]
    assert pcm_of(answers) == b"".join(expected)
    others = [answer.type for answer in answers if not AudioChunk.is_type(answer.type)]
    assert others == ["audio-start", "audio-stop", "synthesize-stopped", "audio-start", "audio-stop", "pong"]


def test_invalid_requests_are_explained(server):
    for events, words in (
        ([Synthesize("Hello.", voice=SynthesizeVoice(name="nobody"))], "unknown voice 'nobody'"),
        ([Synthesize("<speak/>", text_format="ssml")], "expected text"),
        ([Synthesize("👍")], "no letter or digit in '👍'"),
        ([Synthesize("a" * 5000)], "at most 4096 characters"),
        ([SynthesizeChunk("Hello.")], "expected synthesize-start first"),
        ([SynthesizeStart(), SynthesizeStop(), SynthesizeChunk("Hello.")], "expected synthesize-start first"),
        ([SynthesizeStart(), SynthesizeStart()], "a speech is in progress"),
        ([Synthesize(LONG), Synthesize(LONG)], "a speech is in progress"),
    ):
        error = exchanged(server, *events, last=Error.is_type)[-1]
        assert words in Error.from_event(error).text
        assert "\n" not in Error.from_event(error).text


def test_invalid_event_closes_the_connection(server):
    address = ("127.0.0.1", server.ports["wyoming"])
    for sent, words in (
        (b"\x00\xff\n", b"a JSON object"),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"a JSON object"),
        (b"[]\n", b"a JSON object"),
        (b"[" * 50_000 + b"\n", b"a JSON object"),
        (b'{"type": 5}\n', b"a JSON object with a type"),
        (b'{"type": "synthesize", "data": []}\n', b"text: expected a string"),
        (b'{"type": "synthesize", "data": 5}\n', b"a JSON object with a type"),
        (b'{"type": "synthesize", "data_length": 1000000000}\n', b"got 1000000000"),
        (b'{"type": "audio-chunk", "payload_length": 1000000000}\n', b"got 1000000000"),
        (b'{"type": "synthesize", "data_length": "a"}\n', b"a JSON object"),
        (b'{"type": "synthesize", "data_length": 2}\n[]', b"text: expected a string"),
        (b'{"type": "synthesize", "data": {"text": "a", "voice": {"name": 5}}}\n', b"voice.name"),
        (b" " * 200_000, b"a line of at most"),
    ):
        answer = raw_answer(address, sent)
        assert words in answer or (not answer and len(sent) > 100_000)
    until(lambda: server.service.queue.busy == 0)


def test_idle_connections_are_closed(serve):
    running = serve(idle_seconds=1)
    sent = (b'{"type": "synthesize", "data_length": 50}\n{"te', b'{"type": "synthesize-start"}\n')
    address = ("127.0.0.1", running.ports["wyoming"])
    with ThreadPoolExecutor(len(sent)) as threads:
        for answer in threads.map(lambda each: raw_answer(address, each), sent):
            assert b"idle for" in answer
    until(lambda: not len(running.service.conversations))


def test_listens_on_loopback_by_default():
    everyone, wyoming_only = {"insecure_serve_without_key": True}, {"insecure_wyoming_without_key": True}
    for host, options, has_keys, expected in (
        ("127.0.0.1", {}, False, "127.0.0.1"),
        ("::1", {}, False, "::1"),
        (EVERYWHERE, {}, True, "127.0.0.1"),
        # With keys, this option has no effect on HTTP, nor here.
        (EVERYWHERE, everyone, True, "127.0.0.1"),
        (EVERYWHERE, everyone, False, EVERYWHERE),
        (EVERYWHERE, wyoming_only, True, EVERYWHERE),
    ):
        address = Wyoming.address(Settings(wyoming=1, host=host, **options), has_keys=has_keys)
        assert address is not None
        assert address[0] == expected


@pytest.fixture
def serve(serve):
    """The same, with Wyoming."""
    return partial(serve, wyoming=0)


@pytest.fixture(scope="module")
def server(tts, tmp_path_factory):
    """A server with default settings and Wyoming, for all tests of a file."""
    given = {"voices_folder": tmp_path_factory.mktemp("voices"), "wyoming": 0}
    with ServerOnLoopback.of(tts, **given) as running:
        yield running


def test_sigterm_closes_idle_connections_and_the_listener(started):
    process, _ = started("--wyoming", "0", "--drain-seconds", "300")
    line = process.stderr.readline()
    assert re.fullmatch(r"listening on tcp://127\.0\.0\.1:\d+ \(Wyoming\)\n", line), line
    address = ("127.0.0.1", int(re.findall(r"\d+", line)[-1]))

    with socket.create_connection(address) as silent, socket.create_connection(address) as speaking:
        silent.sendall(b'{"type": "ping"}\n')
        assert b"pong" in silent.recv(1000)
        asked = {"type": "synthesize", "data": {"text": LONG * 20}}
        speaking.sendall(json.dumps(asked).encode() + b"\n")
        assert b"audio-start" in speaking.recv(100)
        process.send_signal(signal.SIGTERM)
        assert silent.makefile("rb").read().count(b"the server is shutting down") == 1
        # It still speaks, but accepts no new connection.
        until(lambda: is_refused(line.split()[2]))
        speaking.setblocking(False)
        heard = b""
        with contextlib.suppress(BlockingIOError):
            while part := speaking.recv(65_536):
                heard += part
        assert b"audio-stop" not in heard
    rest = process.communicate(timeout=30)[1]
    assert (process.returncode, rest) == (0, "")


@pytest.mark.filterwarnings("ignore:this voice knows the letters")
def test_replaced_characters_are_logged(server, caplog):
    caplog.set_level("WARNING")
    exchanged(server, Synthesize("Say 中."))
    assert caplog.messages == ["speech: 1 characters that the voice cannot say were replaced"]
