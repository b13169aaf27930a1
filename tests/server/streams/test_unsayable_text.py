"""Text that a voice cannot say, in whole or in part, has the same answer on every route."""

import json

import httpx2
import pytest

from speech_socket import heard, said, socket_to
from waiting import until

# An unseeded voice may speak slowly, which is not tested here.
pytestmark = pytest.mark.filterwarnings("ignore::voxcpm_runtime.SuspiciousWarning")
ELEVENLABS = "/v1/text-to-speech/default/multi-stream-input?output_format=pcm_24000&seed=7"
START, END = {"type": "start", "seed": 7}, {"type": "end"}


@pytest.mark.parametrize("text", ["👍🎉", " … "])
def test_text_without_words_is_refused_everywhere(server, text):
    message = f"no letter or digit in {text!r}; expected text to speak"
    body = {"input": text}
    for path in ("audio/speech", "audio/jobs"):
        answer = httpx2.post(f"{server.url}/v1/{path}", json=body)
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
    speech = httpx2.post(f"{server.url}/v1/audio/speech", json=body)
    assert json.loads(speech.headers["X-Replaced-Characters"]) == "中ə"
    job = httpx2.post(f"{server.url}/v1/audio/jobs", json=body).json()
    url = f"{server.url}/v1/audio/jobs/{job['id']}"
    until(lambda: httpx2.get(url).json()["state"] == "done")
    assert httpx2.get(url).json()["replaced"] == "中ə"

    # Those of a long text are known when they are spoken.
    monkeypatch.setattr("voxcpm_runtime.speech.planning.MAX_READ_AT_ONCE", 5)
    body |= {"input": f"Hi you.\n\n{text}", "stream_format": "sse"}
    speech = httpx2.post(f"{server.url}/v1/audio/speech", json=body)
    assert "X-Replaced-Characters" not in speech.headers
    assert json.loads(speech.text.split("data: ")[-2])["replaced"] == "中ə"
    assert caplog.messages == ["speech: 2 characters that the voice cannot say were replaced"]

    with socket_to(server) as connection:
        said(connection, START, {"type": "text", "text": text}, END)
        assert heard(connection)[1][-1]["replaced"] == "中ə"
        # Nothing is known for this letter: its sentence alone is left out.
        said(connection, START, {"type": "text", "text": "Hi you. Ъъъъ ъъъъъ. Hi there."}, END)
        assert heard(connection)[1][-1]["type"] == "done"
    with socket_to(server, ELEVENLABS) as connection:
        said(connection, {"text": text, "context_id": "a"}, {"context_id": "a", "close_context": True})
        message = {}
        while not message.get("isFinal"):
            message = json.loads(connection.recv(timeout=20))
        assert message["replaced"] == "中ə"
