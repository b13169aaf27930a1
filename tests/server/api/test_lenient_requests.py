"""What clients of other servers send: names in any case, no model, an empty voice, a final slash, HEAD."""

import httpx2
import pytest

from voxcpm_runtime import InputError
from voxcpm_server.rooms import AllSettings as Settings

SAID = {"model": "tts-1", "voice": "alloy", "input": "Hello.", "seed": 7, "response_format": "pcm"}
ORIGIN = {"Origin": "https://example.org"}


def post(server, body, path="/v1/audio/speech"):
    return httpx2.post(server.url + path, json=body, timeout=60)


@pytest.mark.parametrize(
    "changed",
    [
        {"model": None},
        {"model": "TTS-1"},
        {"model": "kokoro"},
        {"voice": "Alloy"},
        {"response_format": "PCM"},
    ],
)
def test_variants_mean_the_same(changed, server):
    body = {name: value for name, value in (SAID | changed).items() if value is not None}
    assert post(server, body).content == post(server, SAID).content


def test_final_slash_and_head(server):
    assert post(server, SAID, "/v1/audio/speech/").status_code == 200
    for path in ("/v1/models", "/healthz", "/v1/audio/voices/"):
        answer = httpx2.head(server.url + path)
        assert (answer.status_code, answer.content) == (200, b"")


def test_each_response_has_a_request_id(server):
    ids = [httpx2.get(f"{server.url}/{path}").headers["x-request-id"] for path in ("healthz", "nothing")]
    assert len({*ids}) == 2
    given = httpx2.get(f"{server.url}/healthz", headers={"X-Request-ID": "mine"})
    assert given.headers["x-request-id"] == "mine"


def test_any_origin_may_be_allowed(serve):
    running = serve(cors_origin=["*"])
    answer = httpx2.get(f"{running.url}/v1/models", headers=ORIGIN | {"Sec-Fetch-Site": "cross-site"})
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "*"


@pytest.mark.parametrize(
    "origin",
    [
        "http://localhost:3000/",
        "example.net",
        "https://Example.org",
        "",
        "https://*.example.org",
        "https://a.de:443",
    ],
)
def test_origins_that_cannot_match_are_refused_at_start(origin):
    with pytest.raises(InputError, match="--cors-origin: expected an origin such as"):
        Settings(cors_origin=[origin]).check()
    Settings(
        cors_origin=["*", "null", "http://localhost:3000", "http://[::1]:3000", "https://a-b.org"]
    ).check()
