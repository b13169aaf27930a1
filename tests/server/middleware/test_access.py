"""API keys, loopback, and cross-origin requests."""

import httpx2
import openai
import pytest

from voxcpm_runtime import InputError
from voxcpm_server.application import create_app
from voxcpm_server.middleware.authentication import Keys, read_keys
from voxcpm_server.rooms import AllSettings as Settings

SAID = {"model": "tts-1", "voice": "alloy", "input": "Hello."}


def test_keys_are_required(serve):
    running = serve(keys=("first", "second"))
    for key in ("first", "second"):
        assert running.client(key).models.list()
    for key in ("third", "firs", "first "[:5] + "x"):
        with pytest.raises(openai.AuthenticationError) as caught:
            running.client(key).audio.speech.create(model="tts-1", voice="alloy", input="Hello.")
        assert caught.value.code == "invalid_api_key"
    assert httpx2.get(f"{running.url}/metrics").status_code == 401
    assert httpx2.get(f"{running.url}/v1/models").headers["www-authenticate"] == "Bearer"
    for path in ("/healthz", "/ready", "/openapi.json"):
        assert httpx2.get(running.url + path).status_code == 200


def test_keys_are_read_from_options_file_and_environment(tmp_path, monkeypatch):
    (tmp_path / "keys").write_text("# ours\n  # and indented\nfrom-file\n\n")
    monkeypatch.setenv("VOXCPM_COREML_API_KEYS", "from-environment, and-another")
    keys = read_keys(Settings(api_key=["given"], api_key_file=tmp_path / "keys"))
    owners = [keys.owner(key) for key in ("given", "from-file", "from-environment", "and-another")]
    assert None not in owners
    assert len(set(owners)) == 4
    assert keys.owner("# ours") is None
    assert keys.owner("# and indented") is None
    assert keys.owner(None) is None
    (tmp_path / "keys").write_text("# none\n")
    with pytest.raises(InputError, match="found none"):
        read_keys(Settings(api_key_file=tmp_path / "keys"))


@pytest.mark.parametrize(
    "host",
    ["0.0.0.0", "::", "192.168.1.7", "", "localhost.example.org", "127.0.0.1.example.org"],  # noqa: S104
)
def test_without_keys_only_loopback_is_allowed(host, tts):
    with pytest.raises(InputError, match="--insecure-serve-without-key"):
        create_app(tts, Settings(host=host), Keys(()))
    for loopback in ("127.0.0.1", "127.1.2.3", "::1", "[::1]", "localhost"):
        create_app(tts, Settings(host=loopback), Keys(()))
    create_app(tts, Settings(host=host), Keys(("key",)))
    create_app(tts, Settings(host=host, insecure_serve_without_key=True), Keys(()))


def test_foreign_origins_are_rejected(serve):
    running = serve()
    body = {"json": SAID, "timeout": 60}

    def status(**headers):
        return httpx2.post(f"{running.url}/v1/audio/speech", headers=headers, **body).status_code

    assert status() == 200
    assert status(Origin=running.url) == 200
    assert status(Origin="https://example.org") == 403
    assert status(Origin="http://[") == 403
    # DNS rebinding: a foreign name that resolves to this machine.
    assert status(Host="example.org", Origin="http://example.org") == 403
    assert "access-control-allow-origin" not in httpx2.get(f"{running.url}/v1/models").headers


def test_cross_site_media_requests_are_rejected(serve):
    """Browsers send no Origin for images and sounds, but Sec-Fetch-Site."""
    running = serve(cors_origin=["https://example.org"])
    foreign = {"Sec-Fetch-Site": "cross-site"}

    def status(path, **headers):
        return httpx2.get(running.url + path, headers={**foreign, **headers}, timeout=60).status_code

    assert status("/v1/audio/voices/default/preview") == 403
    assert status("/v1/models") == 403
    assert status("/v1/models", Origin="https://example.org") == 200
    assert status("/v1/models", **{"Sec-Fetch-Site": "same-origin"}) == 200
    # Paths that need no key, such as probes.
    for path in ("/healthz", "/v1/about"):
        assert status(path) == 200


def test_cors_allows_the_clients_headers(serve):
    running = serve(cors_origin=["https://example.org"])
    client = running.client()
    # Headers of OpenAI's client in a browser, and ElevenLabs' key.
    headers = {*map(str.lower, client.default_headers), "x-stainless-retry-count", "range", "xi-api-key"}
    assert "x-stainless-os" in headers
    asked = {
        "Origin": "https://example.org",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": ",".join(sorted(headers)),
    }

    allowed = httpx2.options(f"{running.url}/v1/audio/speech", headers=asked)
    assert allowed.status_code == 200, allowed.text
    assert allowed.headers["access-control-allow-origin"] == "https://example.org"
    assert headers <= set(allowed.headers["access-control-allow-headers"].split(","))
    answer = httpx2.get(f"{running.url}/v1/models", headers={"Origin": "https://example.org"})
    assert answer.headers["access-control-allow-origin"] == "https://example.org"
    assert "Content-Range" in answer.headers["access-control-expose-headers"]
    assert httpx2.get(f"{running.url}/v1/models", headers={"Origin": "https://a.org"}).status_code == 403
    foreign = httpx2.options(f"{running.url}/v1/audio/speech", headers=asked | {"Origin": "https://a.org"})
    assert foreign.status_code == 400
