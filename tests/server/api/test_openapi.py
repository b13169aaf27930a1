"""What /openapi.json says of every route. That answers are as described is checked with jobs' routes among them."""

from __future__ import annotations

from typing import Any

import pytest

from voxcpm_server.application import create_app
from voxcpm_server.middleware.authentication import Keys
from voxcpm_server.rooms import AllSettings as Settings

KEY = "secret"
OPEN = ("/healthz", "/ready", "/v1/about")
"""What needs no key."""


@pytest.mark.parametrize("keys", [(), (KEY,)])
def test_every_route_describes_its_errors_and_the_key(keys: tuple[str, ...], tts: Any) -> None:
    document = create_app(tts, Settings(max_jobs=0), Keys(keys)).openapi()

    schemes = document["components"]["securitySchemes"]
    assert (schemes["bearer"]["scheme"], schemes["xi-api-key"]["name"]) == ("bearer", "xi-api-key")
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            answers, where = operation["responses"], (method, path)
            assert "422" not in answers, where
            assert ("503" in answers) is (path not in ("/healthz", "/metrics")), where
            for status in ("401", "403"):
                assert (status in answers) is (path not in OPEN), where
            if path not in OPEN:
                anyone = [] if keys else [{}]
                assert operation["security"] == [{"bearer": []}, {"xi-api-key": []}, *anyone], where
            else:
                assert "security" not in operation, where
            for status in answers.keys() & {"429", "503"} - ({"503"} if path == "/ready" else set()):
                assert "Retry-After" in answers[status]["headers"], where
    paths = document["paths"]
    assert "501" in paths["/metrics"]["get"]["responses"]
    for path, method in (("/v1/audio/speech", "post"), ("/v1/audio/voices/{name}/preview", "get")):
        headers = paths[path][method]["responses"]["200"]["headers"]
        assert headers.keys() == {"X-Seed", "X-Sample-Rate", "X-Audio-Duration", "X-Ignored-Fields"}
