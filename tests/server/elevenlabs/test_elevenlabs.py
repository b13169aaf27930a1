"""ElevenLabs' plain routes and its websockets, with requests as its SDKs, Pipecat and LiveKit send them."""

import base64
import contextlib
import io
import json

import httpx2
import numpy as np
import pytest
import soundfile
from websockets.exceptions import ConnectionClosed, ConnectionClosedOK, InvalidStatus

import speech_socket
from heard_words import SAID, SEED, wrong_words
from speech_socket import from_elevenlabs, said, spoken_by

LONG = "one two three four five six seven eight nine ten, and on we go. "


def socket_to(server, voice="default", query=""):
    return speech_socket.socket_to(server, f"/v1/text-to-speech/{voice}/multi-stream-input?{query}")


def audio_of(messages, context):
    return b"".join(base64.b64decode(m.get("audio", "")) for m in messages if m["contextId"] == context)


def test_concurrent_contexts_are_transcribed(server, tts):
    first, second = SAID.split(". ", 1)
    with socket_to(
        server, query=f"model_id=eleven_flash_v2_5&output_format=pcm_24000&seed={SEED}"
    ) as connection:
        # The order and fields of Pipecat's service.
        said(
            connection, {"text": ""}, {"text": " ", "context_id": "one", "voice_settings": {"stability": 0.5}}
        )
        said(connection, {"text": f"{first}. ", "context_id": "one"}, {"text": " ", "context_id": "two"})
        said(connection, {"text": "Hello there. ", "context_id": "two"})
        said(connection, {"text": second, "context_id": "one"}, {"context_id": "one", "flush": True})
        said(
            connection,
            {"context_id": "two", "close_context": True},
            {"context_id": "one", "close_context": True},
        )
        messages = from_elevenlabs(connection, finals=2)
        said(connection, {"close_socket": True})
        with pytest.raises(ConnectionClosed) as closed:
            connection.recv(timeout=10)

    assert closed.value.rcvd.code == 1000
    assert audio_of(messages, "one") == spoken_by(tts, SAID, seed=SEED)
    assert audio_of(messages, "two") == spoken_by(tts, "Hello there. ", seed=SEED)
    assert wrong_words(audio_of(messages, "one"), 24_000) <= 3
    # Pipecat sums the spans of messages; they add up to the audio.
    spans = [m["alignment"] for m in messages if m["contextId"] == "one" and m.get("alignment")]
    assert "".join(character for span in spans for character in span["chars"]) == SAID
    milliseconds = sum(s["charStartTimesMs"][-1] + s["charDurationsMs"][-1] for s in spans)
    assert milliseconds == pytest.approx(len(audio_of(messages, "one")) / 48, abs=60)
    for span in spans:
        assert len(span["chars"]) == len(span["charStartTimesMs"]) == len(span["charDurationsMs"])
        assert span["charStartTimesMs"] == sorted(span["charStartTimesMs"])
        assert min(span["charDurationsMs"]) >= 0


def test_mp3_at_livekits_rate_and_speed(server, tts):
    query = f"output_format=mp3_22050_32&inactivity_timeout=180&seed={SEED}"
    with socket_to(server, query=query) as connection:
        said(connection, {"text": " ", "voice_settings": {"speed": 2}, "context_id": "a"})
        said(connection, {"text": "Hello there. ", "context_id": "a", "flush": True})
        said(connection, {"text": "", "context_id": "a", "flush": True})
        said(connection, {"context_id": "a", "close_context": True})
        # A closed context ignores text.
        said(connection, {"text": "Nobody hears this.", "context_id": "a"})
        audio, rate = soundfile.read(io.BytesIO(audio_of(from_elevenlabs(connection), "a")))
    assert rate == 22_050
    assert np.abs(audio).max() > 0.05
    whole = len(spoken_by(tts, "Hello there. ", seed=SEED)) / 2 / tts.sample_rate
    assert len(audio) / rate == pytest.approx(whole / 2, abs=0.15)


def test_error_in_one_context_leaves_the_others(server):
    with socket_to(server, query="output_format=pcm_16000") as connection:
        said(
            connection, {"text": "Hello. ", "context_id": "good"}, {"text": "a" * 5000, "context_id": "long"}
        )
        said(
            connection,
            {"text": 5, "context_id": "odd"},
            {"text": "x", "context_id": "z", "voice_settings": {"speed": 9}},
        )
        # Unknown contexts and empty texts are ignored.
        said(connection, {"context_id": "none", "close_context": True}, {"text": "", "context_id": "none"})
        said(connection, {"context_id": "good", "close_context": True})
        messages = from_elevenlabs(connection, finals=4)
    errors = {m["contextId"]: m["error"] for m in messages if "error" in m}
    assert list(errors) == ["long", "odd", "z"]
    assert "at most 4096 characters" in errors["long"]
    assert "expected a string" in errors["odd"]
    assert "expected 0.25 to 4" in errors["z"]
    assert len(audio_of(messages, "good")) > 8_000


def test_contexts_are_limited_as_by_elevenlabs(server):
    with socket_to(server) as connection:
        said(connection, *({"text": " ", "context_id": str(number)} for number in range(6)))
        (error, final) = from_elevenlabs(connection)
        assert "too many contexts: 5" in error["error"]
        assert final == {"isFinal": True, "contextId": "5"}
        # A finished context frees its slot.
        said(connection, {"context_id": "0", "close_context": True})
        assert from_elevenlabs(connection) == [{"isFinal": True, "contextId": "0"}]
        said(connection, {"text": "Hello.", "context_id": "6"}, {"context_id": "6", "close_context": True})
        assert audio_of(from_elevenlabs(connection), "6")


def test_repeated_interruptions(server):
    """Closed contexts that still speak do not block new ones; the oldest excess one is cancelled."""
    with socket_to(server, query=f"output_format=pcm_24000&seed={SEED}") as connection:
        for number in range(6):
            said(connection, {"text": LONG * 20, "context_id": f"{number}"})
            said(connection, {"context_id": f"{number}", "close_context": True})
        said(connection, {"text": "Hello.", "context_id": "last"})
        messages = from_elevenlabs(connection)
        assert messages[-1]["contextId"] == "0"
        # The whole speech would exceed a minute.
        assert len(audio_of(messages, "0")) < 40 * 2 * 24_000
        assert not [message for message in messages if "error" in message]
        # This one is still open.
        said(connection, {"text": 5, "context_id": "last"})
        assert "expected a string" in next(m["error"] for m in from_elevenlabs(connection) if "error" in m)


def test_invalid_urls_fail_the_handshake(server):
    for voice, query, status, words in (
        ("nobody", "", 404, "unknown voice 'nobody'"),
        ("alloy", "output_format=wma_8000", 400, "pcm_24000"),
        ("alloy", "output_format=mp3_12345", 400, "mp3 supports 8000"),
        ("alloy", "output_format=pcm_0000", 400, "8000 to 48000 Hz, got 0"),
        ("alloy", "output_format=pcm_%D9%A2%D9%A4%D9%A0%D9%A0%D9%A0", 400, "such as pcm_24000"),
        ("alloy", "seed=-1", 400, "non-negative integer"),
    ):
        with pytest.raises(InvalidStatus) as refused, socket_to(server, voice, query):
            pass
        assert refused.value.response.status_code == status
        assert words in json.loads(refused.value.response.body)["error"]["message"]


@pytest.mark.parametrize("streamed", [False, True])
def test_the_routes_with_timestamps_have_each_character_of_the_text(server, tts, streamed):
    text = "It costs $4.20. Really? "
    url = f"{server.url}/v1/text-to-speech/emma{'/stream' * streamed}/with-timestamps"
    asked = {"text": text, "seed": SEED, "model_id": "eleven_v3", "voice_settings": {"speed": 2}}
    answer = httpx2.post(url, params={"output_format": "pcm_24000"}, json=asked)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == ("application/x-ndjson" if streamed else "application/json")
    lines = [json.loads(line) for line in answer.text.strip().split("\n")]
    assert (len(lines) > 1) == streamed
    audio = b"".join(base64.b64decode(line["audio_base64"]) for line in lines)
    (aligned,) = (line["alignment"] for line in lines if line["alignment"])
    assert "".join(aligned["characters"]) == text
    starts, ends = aligned["character_start_times_seconds"], aligned["character_end_times_seconds"]
    assert len(starts) == len(ends) == len(text)
    assert all(start <= end for start, end in zip(starts, ends, strict=True))
    words = tts.speak(text, voice="emma", seed=SEED, speed=2.0).words
    assert [starts[at] for at in (0, 3, 9, 16)] == pytest.approx([word.start for word in words], abs=0.002)
    assert ends[-1] <= len(audio) / 48_000


def test_alignment_may_count_from_the_start(server):
    with socket_to(server, query="output_format=pcm_24000&sync_alignment=true") as connection:
        for _ in range(2):  # segments, each with times of its own
            said(connection, {"text": LONG, "context_id": "a", "flush": True})
        said(connection, {"context_id": "a", "close_context": True})
        messages = from_elevenlabs(connection)
    starts = [t for m in messages if m.get("alignment") for t in m["alignment"]["charStartTimesMs"]]
    assert starts == sorted(starts)
    assert starts[-1] == pytest.approx(len(audio_of(messages, "a")) / 48, rel=0.2)


TEXT = "Hello there."
KEY = {"xi-api-key": "none"}


def post(server, path, output_format, **fields):
    body = {"text": TEXT, "model_id": "eleven_multilingual_v2", "seed": 7, **fields}
    url = f"{server.url}/v1/text-to-speech/{path}?output_format={output_format}"
    return httpx2.post(url, json=body, headers=KEY)


def test_convert_and_stream_return_audio_bytes(server, tts):
    for path in ("default", "default/stream"):
        answer = post(server, path, "pcm_24000")
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"] == "audio/pcm"
        assert answer.content == spoken_by(tts, TEXT, seed=7)
        assert ("content-length" in answer.headers) == (path == "default")
    mp3 = post(server, "default", "mp3_44100_128")
    assert mp3.headers["content-type"] == "audio/mpeg"
    assert soundfile.info(io.BytesIO(mp3.content)).samplerate == 44_100


@pytest.mark.parametrize(("codec", "subtype"), [("ulaw", "ULAW"), ("alaw", "ALAW")])
def test_telephone_formats(codec, subtype, server):
    pcm = np.frombuffer(post(server, "default", "pcm_8000").content, "<i2") / 32768
    law = post(server, "default/stream", f"{codec}_8000")
    decoded, _ = soundfile.read(
        io.BytesIO(law.content), samplerate=8000, channels=1, format="RAW", subtype=subtype
    )
    assert len(decoded) == len(pcm)
    assert np.corrcoef(decoded, pcm)[0, 1] > 0.99
    assert post(server, "default", f"{codec}_16000").status_code == 400


def test_models_and_voices_are_listed(server, client):
    listed = server.get("/v1/models", headers=KEY).json()
    openais = [model.id for model in client.models.list()]
    assert [model["model_id"] for model in listed] == openais
    assert all(model["can_do_text_to_speech"] for model in listed)
    first = server.get("/v1/voices", headers=KEY).json()
    second = server.get("/v2/voices", headers=KEY, params={"search": "ALLO"}).json()
    every = server.get("/v1/audio/voices").json()["voices"]
    assert [voice["voice_id"] for voice in first["voices"]] == [voice["id"] for voice in every]
    assert [voice["voice_id"] for voice in second["voices"]] == ["alloy"]
    assert (second["has_more"], second["total_count"], second["next_page_token"]) == (False, 1, None)
    assert server.get("/v1/voices/alloy", headers=KEY).json()["name"] == "alloy"
    assert server.get("/v1/voices/nobody", headers=KEY).status_code == 404


def test_stream_input_speaks_until_the_empty_text_or_closes(server, tts):
    path = "/v1/text-to-speech/default/stream-input?model_id=eleven_turbo_v2&output_format=pcm_24000&seed=7"
    begin = {"text": " ", "try_trigger_generation": True, "voice_settings": None}
    messages = []
    with speech_socket.socket_to(server, path) as connection:
        said(connection, begin, {"text": "Hello ", "try_trigger_generation": True})
        said(connection, {"text": "there. "}, {"text": ""})
        with contextlib.suppress(ConnectionClosedOK):
            while True:
                messages.append(json.loads(connection.recv(timeout=30)))
    assert messages[-1] == {"isFinal": True}
    audio = b"".join(base64.b64decode(message.get("audio", "")) for message in messages)
    assert audio == spoken_by(tts, f"{TEXT} ", seed=7)
    assert "".join(c for m in messages if m.get("alignment") for c in m["alignment"]["chars"]) == f"{TEXT} "
    with speech_socket.socket_to(server, "/v1/text-to-speech/default/stream-input") as connection:
        said(connection, {"text": ""})
        with pytest.raises(ConnectionClosed) as closed:
            connection.recv(timeout=10)
    assert closed.value.rcvd.code == 1000
