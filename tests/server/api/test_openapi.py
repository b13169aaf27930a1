"""What /openapi.json promises: schemathesis asks for everything in it, in seeded variations, right and wrong ones.

What it makes up never names anything that exists. So each case whose path has a name is asked again for a job in each
state, a voice and a model that are there.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx2
import pytest
import soundfile

from server_on_loopback import ServerOnLoopback
from voxcpm_server.application import create_app
from voxcpm_server.jobs.store import MAX_STARTS, JobStore
from voxcpm_server.middleware.authentication import ANYONE, Keys
from voxcpm_server.settings import Settings
from waiting import until

schemathesis = pytest.importorskip("schemathesis", reason="needs the extra dev")
hypothesis = pytest.importorskip("hypothesis")
# What is made up need not be speakable.
pytestmark = pytest.mark.filterwarnings("ignore::voxcpm_runtime.speech.results.SuspiciousWarning")

EXAMPLES = 8
# Of `make torture`, for each operation and for right and wrong requests each; TORTURE_SHARE asks for fewer.
MANY = max(1, round(100 * float(os.environ.get("TORTURE_SHARE", "1"))))
# Most of what is made up is spoken. What becomes too long would end without its end.
SHORT: Any = {
    "max_characters": 8,
    "max_job_characters": 10_000,
    "max_jobs": 10_000,
    "max_audio_seconds": 30,
    "preview_text": "Hi.",
}
KEY = "secret"
VOICE = "ada"
JOBS = ("done", "running", "queued", "waiting", "failed")
"""States of the jobs that are asked for."""
OPEN = ("/healthz", "/ready", "/v1/about")
"""What needs no key."""


def left_behind(folder: Path, owner: str, count: int) -> dict[str, list[str]]:
    """Jobs of an earlier server by the state that they have on its successor: so many that wait, and that fail.

    The model of some is not served any more, and others have ended the server so often that they are given up.
    """
    store = JobStore(folder)
    left: dict[str, list[str]] = {}
    for state, model, starts in (("waiting", "calm", 0), ("failed", "tts-1", MAX_STARTS)):
        request = {"model": model, "input": "Hi.", "voice": "default", "response_format": "mp3"}
        left[state] = [store.add(store.new_folder(), owner, request, 7, 1).id for _ in range(count)]
        for id_ in left[state]:
            store.change(id_, starts=starts)
    store.close()
    return left


class Existing:
    """The jobs, the voice and the models of a server that are asked for; whatever a request deletes is made again.

    left: jobs by their state, as many in each as will be deleted. Jobs that are done are added, as many again. As jobs
    are spoken one after another, the long one that is running after them keeps all later ones waiting for their turn.
    """

    def __init__(
        self, url: str, recording: bytes, left: dict[str, list[str]], key: str | None = None
    ) -> None:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._client = httpx2.Client(base_url=f"{url}/v1", headers=headers, timeout=60)
        self._recording = recording
        self._spare = {**left, "done": [self._submitted("Hi.") for _ in left["failed"]]}
        until(
            lambda: all(self._state(id_) == state for state, ids in self._spare.items() for id_ in ids), 600
        )
        self._jobs: dict[str, str] = {}
        self.asked: Counter[tuple[str, str, str, int]] = Counter()
        """How often there was an answer: method, path, what was asked for, status."""

    def __enter__(self) -> Existing:
        return self

    def __exit__(self, *_: object) -> None:
        # The long ones would hold up the next test's.
        for id_ in self._jobs.values():
            self._client.delete(f"/audio/jobs/{id_}")
        self._client.close()

    def names(self, path: str) -> Mapping[str, str]:
        """What the name in a path may be, by what kind of thing that is."""
        if "{id}" in path:
            return {state: self._job(state) for state in JOBS}
        if path.startswith("/v1/models"):
            return {"model": "tts-1"}
        if self._client.get(f"/audio/voices/{VOICE}").status_code == 404:
            form = {"name": VOICE, "consent": "true", "transcript": "Hello there."}
            made = self._client.post("/audio/voices", data=form, files={"audio_sample": self._recording})
            assert made.status_code == 201, made.text
        return {"voice": VOICE}

    def forget(self, answer: Any) -> None:
        """Delete a job that a made-up request has submitted: it would be spoken before the next one that is needed."""
        if answer.status_code == 202:
            self._client.delete(f"/audio/jobs/{answer.json()['id']}")

    def _job(self, state: str) -> str:
        # An earlier request may have deleted it, and the long one may have come to its end.
        if self._state(id_ := self._jobs.get(state, "")) != state:
            if state in self._spare:
                id_ = self._spare[state].pop()
            else:
                id_ = self._submitted("one two three four five. " * 100)
                until(lambda: self._state(id_) == state)
            self._jobs[state] = id_
        return id_

    def _state(self, id_: str) -> str:
        """The state of a job; an empty one if it is not there."""
        if not id_:
            return ""
        answer = self._client.get(f"/audio/jobs/{id_}")
        assert answer.status_code in (200, 404), answer.text
        return str(answer.json().get("state", ""))

    def _submitted(self, text: str) -> str:
        made = self._client.post("/audio/jobs", json={"model": "tts-1", "input": text})
        assert made.status_code == 202, made.text
        return str(made.json()["id"])


@pytest.fixture(scope="module")
def recording(tts: Any) -> bytes:
    speech, file = tts.speak("Hello there.", seed=7), io.BytesIO()
    soundfile.write(file, speech.audio, speech.sample_rate, format="FLAC")
    return file.getvalue()


@contextlib.contextmanager
def server_with(
    tts: Any, recording: bytes, folder: Path, count: int, key: str | None = None
) -> Iterator[tuple[Any, Existing]]:
    """What a server describes, and what exists on it. count: cases that may delete a job in each state."""
    folders = {f"{kind}_folder": folder / kind for kind in ("voices", "jobs")}
    keys = () if key is None else (key,)
    # One is left after the last case.
    left = left_behind(folder / "jobs", Keys(keys).owner(key) or ANYONE, count + 1)
    with (
        ServerOnLoopback.of(tts, keys, **SHORT, **folders) as running,
        Existing(running.url, recording, left, key) as existing,
    ):
        yield schemathesis.openapi.from_url(f"{running.url}/openapi.json"), existing


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


def asked_of(existing: Existing, case: Any, **more: Any) -> None:
    """Have a case checked as it is, and again for everything that its path may name."""
    existing.forget(case.call_and_validate(checks=CHECKS, timeout=60, **more))
    for name in case.path_parameters or ():
        for kind, given in existing.names(case.path).items():
            case.path_parameters[name] = given
            answer = case.call_and_validate(checks=CHECKS, timeout=60, **more)
            existing.asked[case.method, case.path, kind, answer.status_code] += 1


def answers_are_as_described(described: Any, existing: Existing, mode: Any, examples: int) -> None:
    asked(described, mode, examples, lambda case: asked_of(existing, case))
    if mode != schemathesis.GenerationMode.POSITIVE:
        # Nothing is wrong about a request that has no more than a name.
        return
    job, voice = "/v1/audio/jobs/{id}", "/v1/audio/voices/{name}"
    for state in JOBS:
        assert existing.asked["GET", job, state, 200], existing.asked
        assert existing.asked["GET", f"{job}/audio", state, 200 if state == "done" else 409], existing.asked
        assert existing.asked["DELETE", job, state, 200], existing.asked
    for method, path in (("GET", voice), ("GET", f"{voice}/preview"), ("DELETE", voice)):
        assert existing.asked[method, path, "voice", 200], existing.asked
    assert existing.asked["GET", "/v1/models/{model}", "model", 200], existing.asked


@pytest.mark.long
@pytest.mark.parametrize("mode", schemathesis.GenerationMode)
def test_answers_are_as_described(tts: Any, recording: bytes, tmp_path: Path, mode: Any) -> None:
    with server_with(tts, recording, tmp_path, EXAMPLES) as (described, existing):
        answers_are_as_described(described, existing, mode, EXAMPLES)


@pytest.mark.torture
@pytest.mark.parametrize("mode", schemathesis.GenerationMode)
def test_many_answers_are_as_described(tts: Any, recording: bytes, tmp_path: Path, mode: Any) -> None:
    with server_with(tts, recording, tmp_path, MANY) as (described, existing):
        answers_are_as_described(described, existing, mode, MANY)


def test_answers_of_a_server_with_a_key_are_as_described(tts: Any, recording: bytes, tmp_path: Path) -> None:
    with server_with(tts, recording, tmp_path, 3, KEY) as (described, existing):

        def check(case: Any) -> None:
            for scheme in ("Authorization", "xi-api-key"):
                case.headers.pop(scheme, None)
            answer = case.call(timeout=60, headers={"Authorization": "Bearer wrong"})
            case.validate_response(answer, checks=CHECKS)
            assert answer.status_code == (200 if case.path in OPEN else 401), case.path
            asked_of(existing, case, headers={"Authorization": f"Bearer {KEY}"})

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
