"""The server's routes leave Markdown's marks out, unless a request says otherwise, and read markup where it asks so."""

import base64
import json

import httpx2
import openai
import pytest

from speech_socket import heard, said, socket_to, spoken_by
from voxcpm_runtime.audio.pcm import pcm16

# An unseeded voice may speak slowly, which is not tested here.
pytestmark = pytest.mark.filterwarnings("ignore::voxcpm_runtime.SuspiciousWarning")
MARKED, PLAIN = "**Hi** [there](https://example.com/a).", "Hi there."
ELEVENLABS = "/v1/text-to-speech/default/multi-stream-input?output_format=pcm_24000&seed=7"


def test_requests_are_cleaned_by_default(server):
    def spoken(text, **fields):
        body = {"input": text, "seed": 7, "response_format": "pcm", **fields}
        answer = httpx2.post(f"{server.url}/v1/audio/speech", json=body)
        assert answer.status_code == 200, answer.text
        return answer.content

    plain = spoken(PLAIN, clean="none")
    assert spoken(MARKED) == spoken(MARKED, clean="markdown") == plain
    assert spoken(MARKED, clean="none") != plain
    # Tags are markup there.
    assert spoken("<speak>Hi there.</speak>", markup=True) == plain
    body = {"input": PLAIN, "clean": "html"}
    refused = httpx2.post(f"{server.url}/v1/audio/speech", json=body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "clean")


def test_text_in_fragments_is_cleaned_by_default(server, tts):
    expected = spoken_by(tts, PLAIN, seed=7)
    assert spoken_by(tts, MARKED, seed=7, clean="markdown") == expected
    fragments = [{"type": "text", "text": text} for text in (MARKED[:5], MARKED[5:])]
    for fields, is_plain in (({}, True), ({"clean": "none"}, False)):
        with socket_to(server) as connection:
            said(connection, {"type": "start", "seed": 7, **fields}, *fragments, {"type": "end"})
            assert (heard(connection)[0] == expected) is is_plain
    with socket_to(server, ELEVENLABS) as connection:
        said(connection, {"text": MARKED}, {"close_context": True})
        audio, message = b"", {}
        while not message.get("isFinal"):
            message = json.loads(connection.recv(timeout=20))
            audio += base64.b64decode(message.get("audio", ""))
    assert audio == expected


def test_code_over_several_sentences_is_not_read_in_a_session(server):
    """The sentences of a session are cleaned one by one."""
    text = "Hi there.\n\n```py\nx = 1. Yes.\n\nprint(x)  # No! One.\n```\nAnd so on."
    with socket_to(server) as connection:
        said(connection, {"type": "start", "seed": 7}, {"type": "text", "text": text}, {"type": "end"})
        with_code = heard(connection)[0]
        said(connection, {"type": "start", "seed": 7}, {"type": "text", "text": "Hi there.\n\nAnd so on."})
        said(connection, {"type": "end"})
        assert with_code == heard(connection)[0]


def test_markup_is_read_where_the_request_asks_for_it(client, tts):
    text = "Hello. [pause 0.5s][voice alloy]Hi."
    given = {"model": "tts-1", "voice": "heart", "response_format": "pcm"}
    heard = client.audio.speech.create(input=text, **given, extra_body={"seed": 7, "markup": True}).content
    spoken = tts.generate(text, voice="heart", seed=7, markup=True, retry_badcase=False)
    assert heard == pcm16(spoken).tobytes()
    with pytest.raises(openai.BadRequestError, match=r"markup, line 1, column 1: .*nobody"):
        client.audio.speech.create(input="[voice nobody]Hi.", **given, extra_body={"markup": True})
