"""OpenAI's own client speaks with the server; what comes out is decoded and compared with the runtime's speech."""

from __future__ import annotations

import base64
import io
import json
import time
import wave
from types import SimpleNamespace
from typing import Any

import av
import numpy as np
import openai
import pytest
import soundfile

from heard_words import SAID, SEED, wrong_words
from voxcpm_runtime import pcm16
from voxcpm_server.rooms import AllSettings as Settings
from voxcpm_server.settings import OPENAI_VOICES
from voxcpm_server.speech.encoding import Encoder
from voxcpm_server.speech.speech_requests import SpeechRequest
from waiting import until

TEXT = "Hello there, this is a test of the server."
FORMATS = ("mp3", "opus", "aac", "flac", "wav", "pcm")


def decoded(content: bytes, form: str) -> tuple[np.ndarray, int]:
    """Samples (samples,) in [-1, 1] and their rate, by FFmpeg."""
    if form == "pcm":
        return np.frombuffer(content, "<i2") / 32767.0, 24_000
    with av.open(io.BytesIO(content)) as container:
        frames = [frame.to_ndarray() for frame in container.decode(audio=0)]
        rate = container.streams.audio[0].rate
    joined = np.concatenate([frame[0] for frame in frames])
    return (joined / 32768.0 if joined.dtype == np.int16 else joined), rate


def rms_db(audio: np.ndarray) -> float:
    return 10 * float(np.log10(np.mean(np.square(audio, dtype=np.float64))))


@pytest.mark.parametrize("form", FORMATS)
def test_each_format_has_the_length_and_level_of_the_speech(
    form: str, client: openai.OpenAI, spoken: Any
) -> None:
    answer = client.audio.speech.with_raw_response.create(
        model="tts-1", voice="default", input=TEXT, response_format=form, extra_body={"seed": 7}
    )

    audio, rate = decoded(answer.content, form)
    assert answer.headers["x-seed"] == "7"
    # Codecs add up to two frames of padding.
    assert len(audio) / rate == pytest.approx(spoken.audio_seconds, abs=0.1)
    assert rms_db(audio) == pytest.approx(rms_db(spoken.audio), abs=1.0)
    assert answer.headers["content-type"].startswith("audio/")


@pytest.mark.listening
@pytest.mark.parametrize(("form", "events"), [*((form, False) for form in FORMATS), ("mp3", True)])
def test_what_comes_out_is_heard_as_what_was_said(form: str, events: bool, client: openai.OpenAI) -> None:
    more = {"stream_format": "sse"} if events else {}
    content = client.audio.speech.create(
        model="tts-1", voice="default", input=SAID, response_format=form, extra_body={"seed": SEED}, **more
    ).content
    if events:
        lines = [line.removeprefix("data: ") for line in content.decode().splitlines() if line]
        told = [json.loads(line) for line in lines if line != "[DONE]"]
        content = b"".join(base64.b64decode(event.get("audio", "")) for event in told)

    audio, rate = decoded(content, form)
    assert wrong_words(pcm16(audio.astype(np.float32)).tobytes(), rate) <= 3


def test_plain_samples_are_those_of_the_runtime(client: openai.OpenAI, spoken: Any) -> None:
    said = {"model": "voxcpm", "voice": "default", "input": TEXT, "extra_body": {"seed": 7}}

    pcm = client.audio.speech.create(**said, response_format="pcm").content
    streamed_wav = client.audio.speech.create(**said, response_format="wav").content
    with av.open(io.BytesIO(client.audio.speech.create(**said, response_format="flac").content)) as flac:
        frames = [frame.to_ndarray()[0] for frame in flac.decode(audio=0)]

    assert spoken.sample_rate == 24_000
    assert np.array_equal(np.frombuffer(pcm, "<i2"), pcm16(spoken.audio))
    assert streamed_wav[44:] == pcm
    assert np.array_equal(np.concatenate(frames), pcm16(spoken.audio))
    # Readers that believe a header without a length read to the end.
    assert np.array_equal(soundfile.read(io.BytesIO(streamed_wav), dtype="int16")[0], pcm16(spoken.audio))


@pytest.mark.parametrize("form", FORMATS)
def test_first_bytes_come_while_it_is_still_speaking(form: str, client: openai.OpenAI, server: Any) -> None:
    began = time.perf_counter()
    with client.audio.speech.with_streaming_response.create(
        model="tts-1", voice="default", input=f"{TEXT} " * 4, response_format=form, extra_body={"seed": 7}
    ) as answer:
        chunks = answer.iter_bytes(256)
        next(chunks)
        first = time.perf_counter() - began
        assert server.service.queue.busy >= 1
        length = 256 + sum(map(len, chunks))
    whole = time.perf_counter() - began

    # 64,000 bits a second is the least of all formats; a codec for speech may need a third of that.
    assert length > 8_000 / 3 * 8
    assert first < whole / 3


# Seconds of a patch of 0.5B, and of the others.
@pytest.mark.parametrize(
    ("rate", "seconds", "second"), [(16_000, 0.08, {"mp3", "aac"}), (44_100, 0.16, set())]
)
def test_the_first_patch_gives_bytes_of_each_format_but_two_of_16_khz(
    rate: int, seconds: float, second: set[str]
) -> None:
    noise = np.random.default_rng(0).normal(0, 0.1, (2, round(rate * seconds))).astype(np.float32)
    late = set()
    for form in FORMATS:
        encoder = Encoder(form, rate)
        late |= set() if encoder.encode(noise[0]) else {form}
        assert encoder.encode(noise[1])
    assert late == second


def test_a_wav_begins_with_its_header_at_any_speed(client: openai.OpenAI, euler_steps: Any) -> None:
    """At other speeds than 1 the first samples come with a later patch."""
    given = {"model": "tts-1", "voice": "default", "input": TEXT, "response_format": "wav", "speed": 0.25}
    euler_steps.seconds = 0.02
    with client.audio.speech.with_streaming_response.create(**given) as answer:
        parts = answer.iter_bytes()
        assert next(parts)[:4] == b"RIFF"
        calls = euler_steps.calls
        assert len(b"".join(parts)) > 24_000
    assert calls < 2 * 12


def test_events_carry_the_same_audio(client: openai.OpenAI, spoken: Any) -> None:
    with client.audio.speech.with_streaming_response.create(
        model="gpt-4o-mini-tts",
        voice="default",
        input=TEXT,
        response_format="pcm",
        stream_format="sse",
        extra_body={"seed": 7},
    ) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]

    assert lines.pop() == "[DONE]"
    events = [json.loads(line) for line in lines]
    assert [event["type"] for event in events[:-1]] == ["speech.audio.delta"] * (len(events) - 1)
    assert len(events) > 5
    audio = b"".join(base64.b64decode(event["audio"]) for event in events[:-1])
    assert np.array_equal(np.frombuffer(audio, "<i2"), pcm16(spoken.audio))
    assert events[-1]["seconds"] == pytest.approx(spoken.audio_seconds, abs=1e-3)
    usage = events[-1]["usage"]
    assert events[-1]["type"] == "speech.audio.done"
    assert usage["output_tokens"] == len(spoken.latents)
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"] > len(spoken.latents)


@pytest.mark.parametrize("speed", [0.25, 0.8, 2.0, 4.0])
def test_speed_changes_the_length(speed: float, client: openai.OpenAI, spoken: Any) -> None:
    pcm = client.audio.speech.create(
        model="tts-1", voice="default", input=TEXT, response_format="pcm", speed=speed, extra_body={"seed": 7}
    ).content

    assert len(pcm) / 2 / 24_000 == pytest.approx(spoken.audio_seconds / speed, abs=0.1)


@pytest.mark.parametrize("speed", [0.25, 0.8, 2.0, 4.0])
def test_speed_keeps_the_pitch_and_does_not_depend_on_the_pieces(speed: float) -> None:
    tone = (0.5 * np.sin(2 * np.pi * 200 * np.arange(72_000) / 24_000)).astype(np.float32)

    def stretched(piece: int) -> np.ndarray:
        encoder = Encoder("pcm", 24_000, None, speed)
        parts = [encoder.encode(tone[at : at + piece]) for at in range(0, len(tone), piece)]
        return np.frombuffer(b"".join([*parts, encoder.finish()]), "<i2")

    audio = stretched(3840)
    loudest = np.abs(np.fft.rfft(audio * np.hanning(len(audio)))).argmax() * 24_000 / len(audio)
    assert loudest == pytest.approx(200, abs=1.5)
    assert np.array_equal(audio, stretched(1000))


@pytest.mark.parametrize(("voice_rate", "rate"), [(16_000, 24_000), (44_100, 24_000), (48_000, 24_000)])
def test_plain_samples_are_resampled_to_24_khz(voice_rate: int, rate: int) -> None:
    tone = (0.5 * np.sin(2 * np.pi * 1000 * np.arange(voice_rate) / voice_rate)).astype(np.float32)

    def resampled(piece: int) -> np.ndarray:
        encoder = Encoder("pcm", voice_rate)
        parts = [encoder.encode(tone[at : at + piece]) for at in range(0, len(tone), piece)]
        return np.frombuffer(b"".join([*parts, encoder.finish()]), "<i2") / 32767

    audio = resampled(voice_rate // 6)
    expected = 0.5 * np.sin(2 * np.pi * 1000 * np.arange(rate) / rate)
    middle = slice(1000, -1000)
    assert len(audio) == rate
    assert np.abs(audio - expected)[middle].max() < 1e-4
    assert np.array_equal(audio, resampled(999))


@pytest.mark.parametrize(
    ("form", "rate"), [("wav", 8000), ("flac", 44_100), ("mp3", 16_000), ("opus", 48_000)]
)
def test_a_request_may_name_its_sample_rate(form: str, rate: int, client: openai.OpenAI) -> None:
    answer = client.audio.speech.with_raw_response.create(
        model="tts-1", voice="default", input="Hello.", response_format=form, extra_body={"sample_rate": rate}
    )

    assert answer.headers["x-sample-rate"] == str(rate)
    assert decoded(answer.content, form)[1] == rate


def test_an_answer_that_waits_for_the_end_knows_its_length(client: openai.OpenAI) -> None:
    answer = client.audio.speech.with_raw_response.create(
        model="tts-1", voice="default", input=TEXT, response_format="wav", extra_body={"stream": False}
    )

    with wave.open(io.BytesIO(answer.content)) as file:
        seconds = file.getnframes() / file.getframerate()
    assert float(answer.headers["x-audio-duration"]) == pytest.approx(seconds, abs=1e-3)
    assert len(answer.content) == int(answer.headers["content-length"]) == 44 + 2 * round(seconds * 24_000)


def test_the_seed_that_is_told_speaks_the_same_again(client: openai.OpenAI) -> None:
    said = {"model": "tts-1", "voice": "default", "input": "Hello.", "response_format": "pcm"}
    first = client.audio.speech.with_raw_response.create(**said)
    again = client.audio.speech.create(**said, extra_body={"seed": int(first.headers["x-seed"])})

    assert again.content == first.content


def test_options_and_recordings_reach_the_runtime(client: openai.OpenAI, tts: Any, spoken: Any) -> None:
    recording = io.BytesIO()
    soundfile.write(recording, spoken.audio, spoken.sample_rate, format="WAV", subtype="FLOAT")
    given = {"seed": 3, "cfg_value": 1.5, "inference_timesteps": 6}

    pcm = client.audio.speech.create(
        model="tts-1",
        voice="alloy",
        input="And this.",
        response_format="pcm",
        extra_body={
            **given,
            "prompt_audio": f"data:audio/wav;base64,{base64.b64encode(recording.getvalue()).decode()}",
            "prompt_text": TEXT,
        },
    ).content

    expected = tts.generate("And this.", recording.getvalue(), TEXT, retry_badcase=False, **given)
    assert np.array_equal(np.frombuffer(pcm, "<i2"), pcm16(expected))


def test_what_is_ignored_is_told(client: openai.OpenAI) -> None:
    answer = client.audio.speech.with_raw_response.create(
        model="tts-1", voice="default", input="Hello.", instructions="warmly", extra_body={"volume": 3}
    )

    assert json.loads(answer.headers["x-ignored-fields"]) == ["volume", "instructions"]


def test_null_is_what_was_left_out(client: openai.OpenAI, spoken: Any) -> None:
    nothing = dict.fromkeys(("speed", "instructions", "sample_rate", "stream_format", "prompt_text"))
    pcm = client.audio.speech.create(
        model="tts-1", voice="default", input=TEXT, response_format="pcm", extra_body={"seed": 7, **nothing}
    ).content

    assert np.array_equal(np.frombuffer(pcm, "<i2"), pcm16(spoken.audio))


def test_the_list_of_ignored_fields_is_short(client: openai.OpenAI) -> None:
    many = {f"{number:04}" + "é\r\n" * 1000: 1 for number in range(100)}
    answer = client.audio.speech.with_raw_response.create(
        model="tts-1", voice="default", input="Hello.", extra_body=many
    )

    told = json.loads(answer.headers["x-ignored-fields"])
    assert len(told) == 32
    assert told[0].startswith("0000é")


@pytest.mark.parametrize("styled", [True, False])
def test_instructions_are_the_control_where_there_is_one(styled: bool) -> None:
    served: Any = SimpleNamespace(takes_instructions=styled)
    asked = SpeechRequest(model="tts-1", input="Hello.", instructions="warmly")
    given = asked.arguments(Settings(), served, 100, None)

    assert given.get("control") == ("warmly" if styled else None)


def test_a_form_with_a_file_speaks_as_json_with_base64(server: Any, spoken: Any, tts: Any) -> None:
    import httpx2

    file = io.BytesIO()
    soundfile.write(file, spoken.audio, spoken.sample_rate, format="WAV")
    fields = {
        "model": "tts-1",
        "input": "Good morning.",
        "response_format": "wav",
        "seed": 5,
        "prompt_text": TEXT,
    }
    url = f"{server.url}/v1/audio/speech"

    form = {**{name: str(value) for name, value in fields.items()}, "voice": "", "stream": "false"}
    uploaded = httpx2.post(url, data=form, files={"prompt_audio": ("me.wav", file.getvalue())}, timeout=60)
    encoded = {**fields, "stream": False, "prompt_audio": base64.b64encode(file.getvalue()).decode()}
    sent = httpx2.post(url, json=encoded, timeout=60)

    assert uploaded.status_code == 200, uploaded.text
    expected = tts.generate("Good morning.", io.BytesIO(file.getvalue()), TEXT, seed=5)
    assert np.array_equal(np.frombuffer(uploaded.content[44:], "<i2"), pcm16(expected))
    assert uploaded.content == sent.content
    assert uploaded.headers["x-seed"] == "5"


def test_models_and_voices_are_listed_as_clients_ask_for_them(client: openai.OpenAI, server: Any) -> None:
    import httpx2

    assert [model.id for model in client.models.list()] == ["voxcpm", "tts-1", "tts-1-hd", "gpt-4o-mini-tts"]
    assert client.models.retrieve("tts-1").object == "model"
    for path in ("/audio/voices", "/v1/audio/voices"):
        voices = httpx2.get(server.url + path).json()["voices"]
        assert {voice["id"] for voice in voices} == {"default", *OPENAI_VOICES, *OPENAI_VOICES.values()}
        assert all(voice["name"] == voice["id"] for voice in voices)
    assert httpx2.get(f"{server.url}/audio/models").json()["models"][0] == {"id": "voxcpm", "name": "voxcpm"}
    assert httpx2.get(f"{server.url}/models").json()["data"][0]["id"] == "voxcpm"
    assert len(OPENAI_VOICES) == 13


def test_probes_and_the_description_of_the_protocol(client: openai.OpenAI, server: Any) -> None:
    import httpx2

    client.audio.speech.create(model="tts-1", voice="default", input="Hello.")

    assert httpx2.get(f"{server.url}/healthz").json() == {"status": "ok"}
    assert httpx2.get(f"{server.url}/ready").json()["status"] == "ready"
    counted = 'voxcpm_requests_total{route="/audio/speech",status="200"}'
    until(lambda: counted in httpx2.get(f"{server.url}/metrics").text)
    told = httpx2.get(f"{server.url}/metrics").text
    for name in (
        "voxcpm_first_audio_seconds_count",
        "voxcpm_real_time_factor_count",
        "voxcpm_queue_length 0.0",
        "voxcpm_peak_memory_bytes",
    ):
        assert name in told, name
    assert "/v1/audio/speech" in httpx2.get(f"{server.url}/openapi.json").json()["paths"]
    assert httpx2.get(f"{server.url}/docs").status_code == 404


def test_a_server_that_ends_is_not_ready(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import httpx2

    monkeypatch.setattr(server.service, "draining", True)
    assert httpx2.get(f"{server.url}/ready").status_code == 503
    assert httpx2.get(f"{server.url}/healthz").status_code == 200
