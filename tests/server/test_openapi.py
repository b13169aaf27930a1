"""What /openapi.json promises: schemathesis asks for everything in it, in seeded variations, right and wrong ones."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from server_on_loopback import ServerOnLoopback

schemathesis = pytest.importorskip("schemathesis", reason="needs the extra dev")
hypothesis = pytest.importorskip("hypothesis")

EXAMPLES = 8


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


@pytest.mark.parametrize("mode", schemathesis.GenerationMode)
def test_answers_are_as_described(described: Any, mode: Any) -> None:
    """schemathesis' own plugin of pytest is not for this pytest, so hypothesis runs it."""
    for result in described.get_all_operations():
        operation = result.ok()

        @hypothesis.seed(1)
        @hypothesis.settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            phases=(hypothesis.Phase.generate,),
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
        def ask(case: Any) -> None:
            case.call_and_validate(checks=CHECKS, timeout=60)

        # Nothing can be wrong about a request without parameters.
        with contextlib.suppress(hypothesis.errors.Unsatisfiable):
            ask()


def test_every_route_describes_its_errors(bounded: ServerOnLoopback) -> None:
    document = httpx2.get(f"{bounded.url}/openapi.json").json()

    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert "422" not in operation["responses"], (method, path)
