"""What clients of other servers send, and how Markdown and markup in a text are read on each route."""

import base64

import openai
import pytest

from speech_socket import ELEVENLABS, from_elevenlabs, heard, said, socket_to, spoken_by
from voxcpm_runtime import InputError
from voxcpm_runtime.audio.pcm import pcm16
from voxcpm_server.rooms import AllSettings as Settings

MARKED, PLAIN = "**Hi** [there](https://example.com/a).", "Hi there."
PCM = {"seed": 7, "response_format": "pcm"}
START, END = {"type": "start", "seed": 7}, {"type": "end"}


def test_names_in_any_case_other_models_and_a_final_slash_mean_the_same(server):
    said = {"model": "tts-1", "voice": "alloy", "input": "Hello.", **PCM}
    expected = server.post("/v1/audio/speech", json=said).content
    for changed in ({"model": "TTS-1"}, {"model": "kokoro"}, {"voice": "Alloy"}, {"response_format": "PCM"}):
        assert server.post("/v1/audio/speech", json=said | changed).content == expected, changed
    del said["model"]
    assert server.post("/v1/audio/speech/", json=said).content == expected
    for path in ("/v1/models", "/healthz", "/v1/audio/voices/"):
        answer = server.head(path)
        assert (answer.status_code, answer.content) == (200, b"")


def test_each_response_has_a_request_id(server):
    first, second = (server.get(f"/{path}").headers["x-request-id"] for path in ("healthz", "nothing"))
    assert first != second
    assert server.get("/healthz", headers={"X-Request-ID": "mine"}).headers["x-request-id"] == "mine"


def test_origins_are_any_or_exact(serve):
    origin = {"Origin": "https://example.org", "Sec-Fetch-Site": "cross-site"}
    answer = serve(cors_origin=["*"]).get("/v1/models", headers=origin)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "*"
    wrong = "http://localhost:3000/ example.net https://Example.org https://*.a.org https://a.de:443"
    for origin in ("", *wrong.split()):
        with pytest.raises(InputError, match="--cors-origin: expected an origin such as"):
            Settings(cors_origin=[origin]).check()
    right = ["*", "null", "http://localhost:3000", "http://[::1]:3000", "https://a-b.org"]
    Settings(cors_origin=right).check()


def test_requests_are_cleaned_by_default(server):
    def spoken(text, **fields):
        answer = server.speak(text, **PCM, **fields)
        assert answer.status_code == 200, answer.text
        return answer.content

    plain = spoken(PLAIN, clean="none")
    assert spoken(MARKED) == spoken(MARKED, clean="markdown") == plain
    assert spoken(MARKED, clean="none") != plain
    # Tags are markup there.
    assert spoken("<speak>Hi there.</speak>", markup=True) == plain
    refused = server.speak(PLAIN, clean="html")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "clean")


def test_text_in_fragments_is_cleaned_by_default(server, tts):
    expected = spoken_by(tts, PLAIN, seed=7)
    assert spoken_by(tts, MARKED, seed=7, clean="markdown") == expected
    fragments = [{"type": "text", "text": text} for text in (MARKED[:5], MARKED[5:])]
    for fields, is_plain in (({}, True), ({"clean": "none"}, False)):
        with socket_to(server) as connection:
            said(connection, START | fields, *fragments, END)
            assert (heard(connection)[0] == expected) is is_plain
    with socket_to(server, ELEVENLABS) as connection:
        said(connection, {"text": MARKED}, {"close_context": True})
        messages = from_elevenlabs(connection)
    assert b"".join(base64.b64decode(message.get("audio", "")) for message in messages) == expected


def test_code_over_several_sentences_is_not_read_in_a_session(server):
    """The sentences of a session are cleaned one by one."""
    with_code = "Hi there.\n\n```py\nx = 1. Yes.\n\nprint(x)  # No! One.\n```\nAnd so on."
    spoken = []
    with socket_to(server) as connection:
        for text in (with_code, "Hi there.\n\nAnd so on."):
            said(connection, START, {"type": "text", "text": text}, END)
            spoken.append(heard(connection)[0])
    assert spoken[0] == spoken[1]


def test_markup_is_read_where_the_request_asks_for_it(client, tts):
    text = "Hello. [pause 0.5s][voice alloy]Hi."
    given = {"model": "tts-1", "voice": "heart", "response_format": "pcm"}
    heard = client.audio.speech.create(input=text, **given, extra_body={"seed": 7, "markup": True}).content
    spoken = tts.generate(text, voice="heart", seed=7, markup=True, retry_badcase=False)
    assert heard == pcm16(spoken).tobytes()
    with pytest.raises(openai.BadRequestError, match=r"markup, line 1, column 1: .*nobody"):
        client.audio.speech.create(input="[voice nobody]Hi.", **given, extra_body={"markup": True})
