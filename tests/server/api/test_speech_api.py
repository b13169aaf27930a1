"""OpenAI's own client speaks with the server; what comes out is decoded and compared with the runtime's speech."""

import base64
import io
import json
import time
import wave

import av
import numpy as np
import pytest
import soundfile

from voxcpm_runtime.audio.pcm import pcm16
from voxcpm_server.settings import OPENAI_VOICES
from voxcpm_server.speech.encoding import Encoder
from waiting import until

TEXT = "Hello there, this is a test of the server."
SAID = {"model": "tts-1", "voice": "default", "input": TEXT, "extra_body": {"seed": 7}}


def decoded(content, form):
    """Samples (samples,) in [-1, 1] and their rate, by FFmpeg."""
    if form == "pcm":
        return np.frombuffer(content, "<i2") / 32767.0, 24_000
    with av.open(io.BytesIO(content)) as container:
        frames = [frame.to_ndarray() for frame in container.decode(audio=0)]
        rate = container.streams.audio[0].rate
    joined = np.concatenate([frame[0] for frame in frames])
    return (joined / 32768.0 if joined.dtype == np.int16 else joined), rate


def check_headers(answer):
    assert (answer.headers["x-seed"], answer.headers["x-sample-rate"]) == ("7", "24000")
    assert answer.headers["content-type"].startswith("audio/")


def correlation(first, second):
    """The maximum of the normalised cross-correlation of two recordings."""
    size = 2 * max(len(first), len(second))
    product = np.fft.rfft(first, size) * np.conj(np.fft.rfft(second, size))
    return float(np.fft.irfft(product).max() / np.linalg.norm(first) / np.linalg.norm(second))


@pytest.mark.parametrize("form", ["mp3", "opus", "aac"])
def test_lossy_formats_decode_to_the_speech(form, client, spoken):
    answer = client.audio.speech.with_raw_response.create(**SAID, response_format=form)
    audio, rate = decoded(answer.content, form)
    check_headers(answer)
    # Codecs add up to two frames of padding.
    assert len(audio) / rate == pytest.approx(spoken.audio_seconds, abs=0.1)
    # Opus is always decoded at 48 kHz.
    audio = audio[:: rate // 24_000]
    assert correlation(audio, spoken.audio) > 0.95
    assert np.linalg.norm(audio) == pytest.approx(np.linalg.norm(spoken.audio), rel=0.1)


def test_lossless_formats_equal_the_runtimes_samples(client, spoken):
    contents, expected = {}, pcm16(spoken.audio)
    for form in ("pcm", "wav", "flac"):
        answer = client.audio.speech.with_raw_response.create(**SAID, response_format=form)
        check_headers(answer)
        contents[form] = answer.content
    assert np.array_equal(np.frombuffer(contents["pcm"], "<i2"), expected)
    assert contents["wav"][44:] == contents["pcm"]
    # Readers treat a WAV header without a length as "to the end".
    assert np.array_equal(soundfile.read(io.BytesIO(contents["wav"]), dtype="int16")[0], expected)
    for form in ("wav", "flac"):
        audio, rate = decoded(contents[form], form)
        assert np.array_equal(audio * 32768, expected)
        assert rate == 24_000


# PCM is WAV without its header.
@pytest.mark.parametrize("form", ["mp3", "opus", "aac", "flac", "wav"])
def test_first_bytes_arrive_before_the_speech_ends(form, client, server):
    began = time.perf_counter()
    said = {**SAID, "input": f"{TEXT} " * 2, "response_format": form}
    with client.audio.speech.with_streaming_response.create(**said) as answer:
        chunks = answer.iter_bytes(256)
        next(chunks)
        first = time.perf_counter() - began
        assert server.service.queue.busy >= 1
        length = 256 + sum(map(len, chunks))
    # 64 kbit/s is the lowest default bit rate; speech may need a third of that.
    assert length > 8_000 / 3 * 8
    assert first < (time.perf_counter() - began) / 3


def test_wav_starts_with_its_header_at_any_speed(client, euler_steps):
    """At speeds other than 1 the first samples follow a later patch."""
    euler_steps.seconds = 0.02
    given = {**SAID, "response_format": "wav", "speed": 0.25}
    with client.audio.speech.with_streaming_response.create(**given) as answer:
        parts = answer.iter_bytes()
        assert next(parts)[:4] == b"RIFF"
        calls = euler_steps.calls
        assert len(b"".join(parts)) > 24_000
    assert calls < 2 * 12


def test_events_carry_the_same_audio(client, spoken):
    given = {**SAID, "model": "gpt-4o-mini-tts", "response_format": "pcm", "stream_format": "sse"}
    with client.audio.speech.with_streaming_response.create(**given) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert lines.pop() == "[DONE]"
    *deltas, done = [json.loads(line) for line in lines]
    assert [event["type"] for event in deltas] == ["speech.audio.delta"] * len(deltas)
    assert len(deltas) > 5
    audio = b"".join(base64.b64decode(event["audio"]) for event in deltas)
    assert np.array_equal(np.frombuffer(audio, "<i2"), pcm16(spoken.audio))
    assert done["type"] == "speech.audio.done"
    assert done["seconds"] == pytest.approx(spoken.audio_seconds, abs=1e-3)
    usage = done["usage"]
    assert usage["output_tokens"] == len(spoken.latents)
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"] > len(spoken.latents)


def in_pieces(audio, piece, rate):
    """The PCM encoding of audio in pieces of that many samples."""
    encoder = Encoder("pcm", rate)
    parts = [encoder.encode(audio[at : at + piece]) for at in range(0, len(audio), piece)]
    return np.frombuffer(b"".join([*parts, encoder.finish()]), "<i2")


@pytest.mark.parametrize("voice_rate", [16_000, 44_100, 48_000])
def test_pcm_is_resampled_to_24_khz(voice_rate):
    tone = (0.5 * np.sin(2 * np.pi * 1000 * np.arange(voice_rate) / voice_rate)).astype(np.float32)
    audio = in_pieces(tone, voice_rate // 6, voice_rate)
    expected = 0.5 * np.sin(2 * np.pi * 1000 * np.arange(24_000) / 24_000)
    assert len(audio) == 24_000
    assert np.abs(audio / 32767 - expected)[1000:-1000].max() < 1e-4
    assert np.array_equal(audio, in_pieces(tone, 999, voice_rate))
    # A codec without the voice's rate uses the next higher one.
    assert Encoder("opus", voice_rate).sample_rate == {44_100: 48_000}.get(voice_rate, voice_rate)


def test_sample_rate_is_configurable(client, spoken):
    for form, rate in (("wav", 8000), ("flac", 44_100), ("mp3", 16_000), ("opus", 48_000)):
        given = {**SAID, "response_format": form, "extra_body": {"seed": 7, "sample_rate": rate}}
        answer = client.audio.speech.with_raw_response.create(**given)
        audio, told = decoded(answer.content, form)
        assert (answer.headers["x-sample-rate"], told) == (str(rate), rate)
        assert len(audio) / rate == pytest.approx(spoken.audio_seconds, abs=0.1)


def test_buffered_responses_have_a_length(server):
    for form in ("wav", "flac"):
        answer = server.speak(response_format=form, stream=False)
        samples, rate = soundfile.read(io.BytesIO(answer.content), dtype="int16")
        assert soundfile.info(io.BytesIO(answer.content)).frames == len(samples) > 0
        assert float(answer.headers["x-audio-duration"]) == pytest.approx(len(samples) / rate, abs=1e-3)
        assert len(answer.content) == int(answer.headers["content-length"])
        if form == "wav":
            with wave.open(io.BytesIO(answer.content)) as file:
                assert len(answer.content) == 44 + 2 * file.getnframes()


def test_ignored_fields_are_reported_and_null_means_omitted(server, spoken):
    nothing = dict.fromkeys(("speed", "sample_rate", "stream_format", "prompt_text"))
    given = {"instructions": "warmly", "response_format": "pcm", "seed": 7, "voice": "default"}
    answer = server.speak(TEXT, **given, **nothing, volume=3)
    assert json.loads(answer.headers["x-ignored-fields"]) == ["volume", "instructions"]
    assert np.array_equal(np.frombuffer(answer.content, "<i2"), pcm16(spoken.audio))
    # Headers are short and on one line.
    answer = server.speak(**{f"{number:04}" + "é\r\n" * 1000: 1 for number in range(100)})
    told = json.loads(answer.headers["x-ignored-fields"])
    assert len(told) == 32
    assert told[0].startswith("0000é")


def test_models_and_voices_are_listed(client, server):
    assert [model.id for model in client.models.list()] == ["voxcpm", "tts-1", "tts-1-hd", "gpt-4o-mini-tts"]
    assert client.models.retrieve("tts-1").object == "model"
    for path in ("/audio/voices", "/v1/audio/voices"):
        voices = server.get(path).json()["voices"]
        assert {voice["id"] for voice in voices} == {"default", *OPENAI_VOICES, *OPENAI_VOICES.values()}
        # Open WebUI breaks on a list of strings.
        assert all(voice["name"] == voice["id"] for voice in voices)
    assert server.get("/audio/models").json()["models"][0] == {"id": "voxcpm", "name": "voxcpm"}
    assert server.get("/models").json()["data"][0]["id"] == "voxcpm"


def test_probes_and_openapi(client, server, monkeypatch):
    client.audio.speech.create(model="tts-1", voice="default", input="Hello.")
    assert server.get("/healthz").json() == {"status": "ok"}
    assert server.get("/ready").json()["status"] == "ready"
    until(lambda: 'voxcpm_requests_total{route="/audio/speech",status="200"}' in server.metrics())
    for name in ("first_audio_seconds_count", "real_time_factor_count", "queue_length 0.0"):
        assert f"voxcpm_{name}" in server.metrics(), name
    document = server.get("/openapi.json").json()
    described = document["paths"]["/v1/audio/speech"]["post"]
    assert described["security"] == [{"bearer": []}, {"xi-api-key": []}, {}]
    assert document["components"]["securitySchemes"].keys() == {"bearer", "xi-api-key"}
    assert "422" not in described["responses"]
    assert "Retry-After" in described["responses"]["429"]["headers"]
    assert "X-Ignored-Fields" in described["responses"]["200"]["headers"]
    assert "security" not in document["paths"]["/ready"]["get"]
    assert server.get("/docs").status_code == 404
    monkeypatch.setattr(server.service, "draining", True)
    assert server.get("/ready").json()["status"] == "draining"
    assert server.get("/healthz").status_code == 200


def test_a_servers_lexicon_applies_to_every_request(serve, tts, tmp_path):
    (tmp_path / "names.tsv").write_text("nguyen\twin\n", encoding="utf-8")
    running = serve(lexicon=[tmp_path / "names.tsv"])
    said = {"model": "tts-1", "voice": "heart", "response_format": "pcm", "extra_body": {"seed": 7}}
    heard = running.client().audio.speech.create(input="Nguyen!", **said).content
    assert heard == pcm16(tts.generate("win!", voice="heart", seed=7, retry_badcase=False)).tobytes()
    assert not tts.bundle.lexicon


def test_options_and_recordings_reach_the_runtime_from_json_and_forms(server, spoken, tts):
    recording = io.BytesIO()
    soundfile.write(recording, spoken.audio, spoken.sample_rate, format="WAV")
    content, words = recording.getvalue(), "Good morning."
    options = {"seed": 5, "cfg_value": 1.5, "fast": True, "speed": 1.5}
    fields = {"response_format": "wav", "prompt_text": TEXT, **options}
    form = {name: str(value) for name, value in fields.items()} | {
        "input": words,
        "voice": "",
        "stream": "false",
    }
    uploaded = server.post("/v1/audio/speech", data=form, files={"prompt_audio": ("me.wav", content)})
    assert uploaded.status_code == 200, uploaded.text
    encoded = f"data:audio/wav;base64,{base64.b64encode(content).decode()}"
    assert server.speak(words, stream=False, prompt_audio=encoded, **fields).content == uploaded.content
    expected = tts.generate(words, io.BytesIO(content), TEXT, retry_badcase=False, **options)
    assert np.array_equal(np.frombuffer(uploaded.content[44:], "<i2"), pcm16(expected))
    assert uploaded.headers["x-seed"] == "5"
