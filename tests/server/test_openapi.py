"""What /openapi.json promises: schemathesis asks for everything in it, in seeded variations, right and wrong ones."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from server_on_loopback import ServerOnLoopback
from voxcpm_server.application import create_app
from voxcpm_server.authentication import Keys
from voxcpm_server.settings import Settings

schemathesis = pytest.importorskip("schemathesis", reason="needs the extra dev")
hypothesis = pytest.importorskip("hypothesis")

EXAMPLES = 8
KEY = "secret"
OPEN = ("/healthz", "/ready", "/v1/about")
"""What needs no key."""


@pytest.fixture(scope="module")
def bounded(tts: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerOnLoopback]:
    """A server whose speeches are short, since most of what is made up is spoken."""
    folders = {f"{kind}_folder": tmp_path_factory.mktemp(kind) for kind in ("voices", "jobs")}
    with ServerOnLoopback.of(
        tts, max_characters=8, max_job_characters=8, max_audio_seconds=0.5, max_jobs=10_000, **folders
    ) as running:
        yield running


@pytest.fixture(scope="module")
def described(bounded: ServerOnLoopback) -> Any:
    return schemathesis.openapi.from_url(f"{bounded.url}/openapi.json")


CHECKS = (
    schemathesis.checks.not_a_server_error,
    schemathesis.checks.status_code_conformance,
    schemathesis.checks.content_type_conformance,
    schemathesis.checks.response_schema_conformance,
    schemathesis.checks.response_headers_conformance,
)


def asked(described: Any, mode: Any, examples: int, check: Callable[[Any], object]) -> None:
    """Have cases of every operation checked. schemathesis' own plugin of pytest is not for this pytest, so hypothesis
    runs them.
    """
    for result in described.get_all_operations():
        operation = result.ok()

        @hypothesis.seed(1)
        @hypothesis.settings(
            max_examples=examples,
            deadline=None,
            database=None,
            phases=(hypothesis.Phase.generate,),
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
        def ask(case: Any) -> None:
            check(case)

        # Nothing can be wrong about a request without parameters.
        with contextlib.suppress(hypothesis.errors.Unsatisfiable):
            ask()


@pytest.mark.parametrize("mode", schemathesis.GenerationMode)
def test_answers_are_as_described(described: Any, mode: Any) -> None:
    asked(described, mode, EXAMPLES, lambda case: case.call_and_validate(checks=CHECKS, timeout=60))


def test_answers_of_a_server_with_a_key_are_as_described(tts: Any, tmp_path: Path) -> None:
    folders = {f"{kind}_folder": tmp_path / kind for kind in ("voices", "jobs")}
    with ServerOnLoopback.of(tts, (KEY,), max_characters=8, max_audio_seconds=0.5, **folders) as running:
        described = schemathesis.openapi.from_url(f"{running.url}/openapi.json")

        def check(case: Any) -> None:
            for scheme in ("Authorization", "xi-api-key"):
                case.headers.pop(scheme, None)
            answer = case.call(timeout=60, headers={"Authorization": "Bearer wrong"})
            case.validate_response(answer, checks=CHECKS)
            assert answer.status_code == (200 if case.path in OPEN else 401), case.path
            case.call_and_validate(checks=CHECKS, timeout=60, headers={"Authorization": f"Bearer {KEY}"})

        asked(described, schemathesis.GenerationMode.POSITIVE, 2, check)


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
    assert "Location" in paths["/v1/audio/jobs"]["post"]["responses"]["202"]["headers"]
    for path, method in (("/v1/audio/speech", "post"), ("/v1/audio/voices/{name}/preview", "get")):
        headers = paths[path][method]["responses"]["200"]["headers"]
        assert headers.keys() == {"X-Seed", "X-Sample-Rate", "X-Audio-Duration", "X-Ignored-Fields"}
