"""`voxcpm-coreml serve` as a process: ports, signals, and errors before loading; and its documentation."""

import contextlib
import json
import re
import signal
import socket
import threading

import httpx2
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from documents import BY_NAME, run_python
from server_on_loopback import is_refused
from waiting import until


def test_port_in_use_fails_before_loading(refusal):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        line = refusal("serve", "--port", port)
    assert line.startswith(f"error: cannot listen on 127.0.0.1 port {port} (Address already in use")
    assert "--port" in line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--host", "0.0.0.0"), "--insecure-serve-without-key"),  # noqa: S104 - to be refused
        (("--host", "256.1.1.1", "--api-key", "key"), "cannot listen on"),
        (("--api-key", ""), "expected a key"),
        (("--api-key-file", "absent"), "cannot read"),
        (("--voice-aliases", "absent"), "cannot read"),
        (("--voice-aliases", "~nobody-of-this-name/aliases.json"), "no such user"),
        (("absent-bundle", "--port", "0"), "absent-bundle"),
        (("--bundle", "calm=absent"), "absent: no such folder"),
        (("--bundle", "calm=~nobody-of-this-name/calm"), "no such user"),
        (("--max-memory", "8", "--port", "0"), "with a unit"),
        (("absent-bundle", "--voices-folder", "file", "--port", "0"), "file: expected a folder"),
        (("--jobs-folder", "~nobody-of-this-name", "--port", "0"), "no such user"),
    ],
)
def test_invalid_options_are_one_line_errors(arguments, words, refusal, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VOXCPM_COREML_CACHE", str(tmp_path))
    (tmp_path / "file").touch()
    assert words in refusal("serve", *arguments)


@pytest.mark.long
@pytest.mark.parametrize(
    "module",
    ["av", "fastapi", "prometheus_client", "psutil", "python_multipart", "uvicorn", "websockets", "wyoming"],
)
def test_missing_package_names_the_extra(module, command_line):
    # The bundle does not exist either, so a server with all packages exits too.
    absent = f"import sys; sys.modules['{module}'] = None\n"
    process = command_line("serve", "absent-bundle", "--port", "0", before=absent)
    error = process.communicate()[1]
    assert process.returncode == 2
    assert re.fullmatch(rf'error: .*{module}.* pip install "voxcpm-coreml\[serve\]"\n', error)


def asked(url, words, **fields):
    """A thread with a started speech request, and its response or error."""
    outcomes = []

    def ask():
        body = {"model": "tts-1", "input": words, "response_format": "pcm", "seed": 1, **fields}
        try:
            outcomes.append(httpx2.post(f"{url}/v1/audio/speech", json=body))
        except httpx2.HTTPError as error:
            outcomes.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    until(lambda: httpx2.get(f"{url}/ready").json()["speaking"])
    return asking, outcomes


def test_sigterm_drains_and_exits_cleanly(started):
    process, url = started()
    asking, outcomes = asked(url, "one two three four five six seven. " * 4)
    process.send_signal(signal.SIGTERM)
    asking.join(60)
    rest = process.communicate(timeout=30)[1]
    assert (process.returncode, rest) == (0, "")
    assert len(outcomes[0].content) > 5 * 48_000


@pytest.mark.long
@pytest.mark.parametrize("streamed", [True, False])
def test_speech_longer_than_the_drain_is_cut_off(started, streamed):
    process, url = started("--drain-seconds", "1")
    asking, outcomes = asked(url, "one two three four five six seven. " * 100, stream=streamed)
    process.send_signal(signal.SIGTERM)
    rest = process.communicate(timeout=30)[1]
    asking.join(30)
    assert process.returncode == 0, rest
    # uvicorn logs how many requests it cancelled and the incomplete response.
    assert len(rest.splitlines()) == (2 if streamed else 1), rest
    if streamed:
        assert isinstance(outcomes[0], httpx2.HTTPError)
    else:
        assert outcomes[0].status_code == 503
        assert outcomes[0].json()["error"]["message"] == "the server is shutting down; try again"


def test_sigterm_drains_active_conversations_and_closes_idle_ones(started):
    process, url = started()
    stream = f"{url.replace('http', 'ws')}/v1/audio/stream"
    with connect(stream) as speaking, connect(stream) as silent:
        for message in ({"type": "start"}, {"type": "text", "text": "One two three. Four five six."}):
            speaking.send(json.dumps(message))
        silent.ping().wait(20)
        while not isinstance(speaking.recv(timeout=30), bytes):
            pass
        process.send_signal(signal.SIGTERM)
        assert json.loads(silent.recv(timeout=20))["error"]["code"] == "server_ending"
        with pytest.raises(ConnectionClosed) as closed:
            silent.recv(timeout=20)
        assert closed.value.rcvd.code == 1012
        assert is_refused(url)
        # An open conversation still accepts its text.
        speaking.send(json.dumps({"type": "text", "text": " Seven eight nine."}))
        speaking.send(json.dumps({"type": "end"}))
        events = []
        with contextlib.suppress(ConnectionClosed):
            for message in speaking:
                events += [json.loads(message)] if isinstance(message, str) else []
        assert [event["type"] for event in events] == ["done", "error"]
        rest = process.communicate(timeout=30)[1]
    assert (process.returncode, rest) == (0, "")


@pytest.mark.long
def test_second_ctrl_c_exits_immediately(started):
    # Background processes of a shell ignore SIGINT.
    process, url = started(before="import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n")
    said = {"model": "tts-1", "input": "It rained all day. " * 100, "response_format": "pcm"}
    with httpx2.stream("POST", f"{url}/v1/audio/speech", json=said) as answer:
        assert next(answer.iter_raw())
        process.send_signal(signal.SIGINT)
        # It no longer accepts connections.
        until(lambda: is_refused(url))
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=30)[1]
    assert process.returncode == 130
    assert rest.splitlines()[-1] == "error: interrupted"
    assert "Traceback" not in rest


def test_documented_python_runs(server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "anything")
    names = run_python(BY_NAME["server.md"])
    run_python(BY_NAME["server-api.md"], client=names["client"])
    names["client"].close()
    assert (tmp_path / "hello.wav").stat().st_size > 1000
