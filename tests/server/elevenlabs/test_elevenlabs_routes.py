"""ElevenLabs' plain routes, with requests as its SDKs and LiveKit's plugin send them."""

import base64
import contextlib
import io
import json

import httpx2
import numpy as np
import pytest
import soundfile
from websockets.exceptions import ConnectionClosed, ConnectionClosedOK

from speech_socket import said, socket_to, spoken_by

pytestmark = pytest.mark.filterwarnings("ignore::voxcpm_runtime.SuspiciousWarning")
TEXT = "Hello there."
KEY = {"xi-api-key": "none"}


def post(server, path, output_format, **fields):
    body = {"text": TEXT, "model_id": "eleven_multilingual_v2", "seed": 7, **fields}
    url = f"{server.url}/v1/text-to-speech/{path}?output_format={output_format}"
    return httpx2.post(url, json=body, headers=KEY, timeout=60)


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


def test_models_are_a_list_for_elevenlabs_and_an_object_for_openai(server, client):
    listed = httpx2.get(f"{server.url}/v1/models", headers=KEY).json()
    openais = [model.id for model in client.models.list()]
    assert [model["model_id"] for model in listed] == openais
    assert all(model["can_do_text_to_speech"] for model in listed)


def test_voices_are_listed_and_found(server):
    first = httpx2.get(f"{server.url}/v1/voices", headers=KEY).json()
    second = httpx2.get(f"{server.url}/v2/voices", headers=KEY, params={"search": "ALLO"}).json()
    every = httpx2.get(f"{server.url}/v1/audio/voices").json()["voices"]
    assert [voice["voice_id"] for voice in first["voices"]] == [voice["id"] for voice in every]
    assert [voice["voice_id"] for voice in second["voices"]] == ["alloy"]
    assert (second["has_more"], second["total_count"], second["next_page_token"]) == (False, 1, None)
    assert httpx2.get(f"{server.url}/v1/voices/alloy", headers=KEY).json()["name"] == "alloy"
    assert httpx2.get(f"{server.url}/v1/voices/nobody", headers=KEY).status_code == 404


def test_stream_input_speaks_until_the_empty_text(server, tts):
    path = "/v1/text-to-speech/default/stream-input?model_id=eleven_turbo_v2&output_format=pcm_24000&seed=7"
    begin = {"text": " ", "try_trigger_generation": True, "voice_settings": None}
    messages = []
    with socket_to(server, path) as connection:
        said(connection, begin, {"text": "Hello ", "try_trigger_generation": True})
        said(connection, {"text": "there. "}, {"text": ""})
        with contextlib.suppress(ConnectionClosedOK):
            while True:
                messages.append(json.loads(connection.recv(timeout=30)))
    assert messages[-1] == {"isFinal": True}
    audio = b"".join(base64.b64decode(message.get("audio", "")) for message in messages)
    assert audio == spoken_by(tts, f"{TEXT} ", seed=7)
    assert "".join(c for m in messages if m.get("alignment") for c in m["alignment"]["chars"]) == f"{TEXT} "


def test_stream_input_without_text_closes(server):
    with socket_to(server, "/v1/text-to-speech/default/stream-input") as connection:
        said(connection, {"text": ""})
        with pytest.raises(ConnectionClosed) as closed:
            connection.recv(timeout=10)
    assert closed.value.rcvd.code == 1000
