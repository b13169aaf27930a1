"""What answers report beside the audio: times of words, missed words, unsayable text, faults of a recording."""

import base64
import io
import json

import av
import numpy as np
import pytest
import soundfile

from heard_words import SEED
from speech_socket import ELEVENLABS, from_elevenlabs, heard, said, socket_to
from voxcpm_runtime import Word
from voxcpm_server.speech.encoding import Encoder
from waiting import until

pytestmark = pytest.mark.filterwarnings("ignore:segment")
TEXT, WORDS = "It costs $4.20. Really?", ["It", "costs", "$4.20.", "Really?"]
ASKED = {"voice": "emma", "seed": SEED, "response_format": "wav"}


@pytest.fixture(scope="module")
def words(tts):
    return tts.speak(TEXT, voice="emma", seed=SEED).words


def milliseconds(words):
    return [{"word": w.text, "start_ms": round(1000 * w.start), "end_ms": round(1000 * w.end)} for w in words]


def events(server, text, **fields):
    """The events of a speech."""
    lines = server.speak(text, stream_format="sse", **fields).text.split("\n\n")
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]


def finished_job(server, **given):
    """What a job says when it is submitted, and its path and what it says when it is done."""
    job = server.post("/v1/audio/jobs", **given).json()
    path = f"/v1/audio/jobs/{job['id']}"
    until(lambda: server.get(path).json()["state"] == "done")
    return job, path, server.get(path).json()


@pytest.mark.parametrize("speed", [1, 2])
def test_a_header_has_the_times_of_words_and_the_audio_is_whole(server, tts, speed):
    answer = server.speak(TEXT, **ASKED, word_timestamps=True, speed=speed)
    found = json.loads(answer.headers["X-Word-Timestamps"])
    assert [word["word"] for word in found] == WORDS
    assert found == milliseconds(tts.speak(TEXT, voice="emma", seed=SEED, speed=float(speed)).words)
    assert found[-1]["end_ms"] <= 1000 * float(answer.headers["X-Audio-Duration"])


def test_a_long_header_is_left_out_and_said_so(server, monkeypatch):
    monkeypatch.setattr("voxcpm_server.speech.speech_responses._MAX_TIMESTAMPS", 100)
    answer = server.speak(TEXT, **ASKED, word_timestamps=True)
    assert "X-Word-Timestamps" not in answer.headers
    assert answer.headers["X-Word-Timestamps-Omitted"] == "true"


def test_events_have_times_of_words_only_if_they_are_asked_for(server, words):
    kind = "speech.audio.timestamps"
    found = events(server, TEXT, **ASKED, word_timestamps=True)
    expected = {"type": kind, "words": milliseconds(words), "method": words[0].method}
    assert [event for event in found if event["type"] == kind] == [expected]
    assert events(server, TEXT, **ASKED) == [event for event in found if event["type"] != kind]


@pytest.mark.parametrize("streamed", [False, True])
def test_captioned_speech_as_kokoros_clients_ask_for_it(server, words, streamed):
    asked = {**ASKED, "input": TEXT, "model": "kokoro", "stream": streamed, "return_timestamps": True}
    answer = server.post("/dev/captioned_speech", json=asked)
    lines = [json.loads(line) for line in answer.text.strip().split("\n")]
    assert (len(lines) > 1) == streamed
    assert {line["audio_format"] for line in lines} == {"audio/wav"}
    assert b"".join(base64.b64decode(line["audio"]) for line in lines).startswith(b"RIFF")
    assert [word for line in lines for word in line["timestamps"]] == [
        {"word": word.text, "start_time": word.start, "end_time": word.end} for word in words
    ]


def test_a_websocket_sends_times_after_the_audio_of_their_sentence(server):
    with socket_to(server) as connection:
        said(connection, {"type": "start", "voice": "emma", "seed": SEED, "word_timestamps": True})
        said(connection, {"type": "text", "text": TEXT}, {"type": "end"})
        messages = []
        while not messages or messages[-1]["type"] not in ("done", "error"):
            message = connection.recv(timeout=30)
            messages.append({"type": "audio"} if isinstance(message, bytes) else json.loads(message))
    kinds = [message["type"] for message in messages]
    assert kinds.count("timestamps") == 2
    assert kinds[kinds.index("timestamps") - 1] == "audio"
    assert [word["word"] for m in messages if m["type"] == "timestamps" for word in m["words"]] == WORDS


@pytest.mark.parametrize("form", ["mp3", "aac", "opus", "flac", "wav"])
def test_times_are_those_of_the_decoded_audio(form):
    """MP3 and AAC begin with samples of their own."""
    audio = np.zeros(24000, np.float32)
    audio[12000:12240] = 0.8 * np.sin(np.arange(240) / 2)
    encoder = Encoder(form, 24000)
    container = av.open(io.BytesIO(encoder.header() + encoder.encode(audio) + encoder.finish()))
    decoded = np.abs(np.concatenate([f.to_ndarray()[0].astype(float) for f in container.decode(audio=0)]))
    (word,) = encoder.heard([Word("tick", 0.5, 0.51, "pauses")])
    onset = np.argmax(decoded > 0.3 * decoded.max()) / container.streams.audio[0].rate
    assert word.start == pytest.approx(onset, abs=0.003)


CUT = "Snow fell all night. The roads are white."
FENRIR = {"voice": "fenrir", "seed": 1, "response_format": "pcm"}
UNSAID = [
    {"word": word, "place": place} for word, place in zip(CUT.split()[4:], (21, 25, 31, 35), strict=True)
]


def test_missed_words_are_in_headers_and_events(server, monkeypatch):
    # The stop head, which ends this speech after "night.", is believed at once, and nothing is retried.
    monkeypatch.setattr("voxcpm_runtime.words.coverage._PATIENCE", -100)
    monkeypatch.setattr("voxcpm_runtime.speech.attempts._missed", lambda _: 0)
    monkeypatch.setattr("voxcpm_runtime.speech.attempts._reason", lambda *_, **__: "")
    whole = server.speak(CUT, **FENRIR, stream=False, word_timestamps=True)
    assert json.loads(whole.headers["X-Unsaid-Words"]) == UNSAID
    assert "X-Repeated-Words" not in whole.headers
    told = [word["word"] for word in json.loads(whole.headers["X-Word-Timestamps"])]
    assert told == ["Snow", "fell", "all", "night."]
    done = next(event for event in events(server, CUT, **FENRIR) if event["type"] == "speech.audio.done")
    assert (done["unsaid"], "repeated" in done) == (UNSAID, False)
    _, path, job = finished_job(server, json={**FENRIR, "input": CUT})
    assert (job["unsaid"], job["repeated"]) == (UNSAID, [])
    assert "roads" not in server.get(f"{path}/subtitles").text


def last_message_to_elevenlabs(server, text):
    with socket_to(server, ELEVENLABS) as connection:
        said(connection, {"text": text, "context_id": "a"}, {"context_id": "a", "close_context": True})
        return from_elevenlabs(connection)[-1]


def test_missed_words_of_a_websocket_have_places_in_all_that_was_sent(server, monkeypatch):
    monkeypatch.setattr(
        "voxcpm_runtime.words.coverage.Follower.counts", lambda self: [1] * 8 + [0] * (len(self._said) - 8)
    )
    with socket_to(server) as connection:
        said(connection, {"type": "start", **FENRIR}, {"type": "text", "text": CUT}, {"type": "end"})
        done = heard(connection)[1][-1]
    assert [(word["word"], word["place"]) for word in done["unsaid"]] == [
        ("all", 10), ("night.", 14), ("are", 31), ("white.", 35),
    ]  # fmt: skip
    assert last_message_to_elevenlabs(server, CUT)["unsaid"] == done["unsaid"]


def test_complete_speech_misses_no_words(server):
    whole = server.speak(CUT, **FENRIR, stream=False)
    assert not {"x-unsaid-words", "x-repeated-words"} & {name.lower() for name in whole.headers}
    done = next(event for event in events(server, CUT, **FENRIR) if event["type"] == "speech.audio.done")
    assert not {"unsaid", "repeated"} & done.keys()
    assert len(server.speak(CUT, **FENRIR, every_word=False).content) < 0.7 * len(whole.content)


# Warnings are turned into errors here.
@pytest.mark.filterwarnings("ignore:the prompt has", "ignore:prompt audio")
def test_faults_of_a_recording_are_reported_by_speech_jobs_and_voices(server):
    recording, noise = io.BytesIO(), np.random.default_rng(0).standard_normal(64_000) * 0.0015
    soundfile.write(recording, np.stack([noise, -noise], axis=1), 16_000, format="WAV")
    files = {"prompt_audio": ("me.wav", recording.getvalue())}
    form = {"input": "Hi.", "prompt_text": "So it is."}
    answer = server.post("/v1/audio/speech", data=form, files=files)
    faults = json.loads(answer.headers["X-Recording-Warnings"])
    starts = ("prompt audio: its channels cancel", "prompt audio: very quiet, -5", "the prompt has 4.0 s")
    assert all(fault.startswith(start) for fault, start in zip(faults, starts, strict=True)), faults
    job, _, done = finished_job(server, data=form, files=files)
    assert job["warnings"] == done["warnings"] == faults
    form = {"name": "ada", "consent": "true", "transcript": "So it is."}
    made = server.post("/v1/audio/voices", data=form, files={"audio_sample": files["prompt_audio"]})
    assert made.json()["warnings"] == faults
    assert server.get("/v1/audio/voices/ada").json()["warnings"] == []


START, END = {"type": "start", "seed": 7}, {"type": "end"}


@pytest.mark.parametrize("text", ["👍🎉", " … "])
def test_text_without_words_is_refused_everywhere(server, text):
    message = f"no letter or digit in {text!r}; expected text to speak"
    body = {"input": text}
    for path in ("audio/speech", "audio/jobs"):
        answer = server.post(f"/v1/{path}", json=body)
        assert (answer.status_code, answer.json()["error"]["message"]) == (400, message)
    with socket_to(server) as connection:
        said(connection, START, {"type": "text", "text": text}, {"type": "flush"}, END)
        error = heard(connection)[1][-1]["error"]
        assert (error["message"], error["param"]) == (message, "text")
        # The connection stays open for the agent's next answer.
        said(connection, START, {"type": "text", "text": f"{text} Hi."}, END)
        assert heard(connection)[1][-1]["seconds"] > 0
        # Nothing at all is not an error.
        said(connection, START, END)
        assert heard(connection)[1][-1]["seconds"] == 0
    with socket_to(server, ELEVENLABS) as connection:
        said(connection, {"text": text, "context_id": "a"}, {"context_id": "a", "close_context": True})
        assert json.loads(connection.recv(timeout=20))["error"] == message


@pytest.mark.filterwarnings("ignore:this voice knows the letters")
def test_replaced_characters_are_reported(server, monkeypatch, caplog):
    caplog.set_level("WARNING")
    text = "Say 中 and ə. Hi there, 中."
    body = {"input": text, "seed": 7, "response_format": "pcm"}
    speech = server.post("/v1/audio/speech", json=body)
    assert json.loads(speech.headers["X-Replaced-Characters"]) == "中ə"
    assert finished_job(server, json=body)[-1]["replaced"] == "中ə"
    # Those of a long text are known when they are spoken.
    monkeypatch.setattr("voxcpm_runtime.speech.planning.MAX_READ_AT_ONCE", 5)
    body |= {"input": f"Hi you.\n\n{text}", "stream_format": "sse"}
    speech = server.post("/v1/audio/speech", json=body)
    assert "X-Replaced-Characters" not in speech.headers
    assert json.loads(speech.text.split("data: ")[-2])["replaced"] == "中ə"
    assert caplog.messages == ["speech: 2 characters that the voice cannot say were replaced"]
    with socket_to(server) as connection:
        said(connection, START, {"type": "text", "text": text}, END)
        assert heard(connection)[1][-1]["replaced"] == "中ə"
        # Nothing is known for this letter: its sentence alone is left out.
        said(connection, START, {"type": "text", "text": "Hi you. Ъъъъ ъъъъъ. Hi there."}, END)
        assert heard(connection)[1][-1]["type"] == "done"
    assert last_message_to_elevenlabs(server, text)["replaced"] == "中ə"
