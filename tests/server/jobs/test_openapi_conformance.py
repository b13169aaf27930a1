"""What /openapi.json promises: schemathesis asks for everything in it, in seeded variations, right and wrong ones.

What it makes up never names anything that exists. So each case whose path has a name is asked again for a job in each
state, a voice and a model that are there; these are deleted at the end.
"""

import contextlib
import io
import os
from collections import Counter

import httpx2
import pytest
import soundfile

from server_on_loopback import ServerOnLoopback
from voxcpm_server.jobs.store import MAX_STARTS, JobStore
from voxcpm_server.middleware.authentication import ANYONE
from waiting import until

schemathesis = pytest.importorskip("schemathesis", reason="needs the extra dev")
hypothesis = pytest.importorskip("hypothesis")
# Generated texts need not be speakable.
pytestmark = pytest.mark.filterwarnings("ignore::voxcpm_runtime.speech.results.SuspiciousWarning")

EXAMPLES = 8
# For `make torture`, per operation, for valid and invalid requests each; TORTURE_SHARE scales it.
MANY = max(1, round(100 * float(os.environ.get("TORTURE_SHARE", "1"))))
# Most generated texts are spoken.
SHORT = {
    "max_characters": 8,
    "max_job_characters": 10_000,
    "max_jobs": 10_000,
    "max_audio_seconds": 30,
    "preview_text": "Hi.",
}
OPEN = ("/healthz", "/ready", "/v1/about")
"""Paths that need no key."""
CHECKS = (
    schemathesis.checks.not_a_server_error,
    schemathesis.checks.status_code_conformance,
    schemathesis.checks.content_type_conformance,
    schemathesis.checks.response_schema_conformance,
    schemathesis.checks.response_headers_conformance,
)


def left_behind(folder):
    """Jobs of an earlier server by their state on the next: unknown model; too many starts."""
    store, left = JobStore(folder), {}
    for state, model, starts in (("waiting", "calm", 0), ("failed", "tts-1", MAX_STARTS)):
        request = {"model": model, "input": "Hi.", "voice": "default", "response_format": "mp3"}
        left[state] = store.add(ANYONE, request, 7, 1, {}, None).id
        store.change(left[state], starts=starts)
    store.close()
    return left


class Existing:
    """A job in each state, a voice and a model of a server, by path parameter."""

    def __init__(self, url, tts, left):
        self._client = httpx2.Client(base_url=f"{url}/v1")
        speech, recording = tts.speak("Hello there.", seed=7), io.BytesIO()
        soundfile.write(recording, speech.audio, speech.sample_rate, format="FLAC")
        form = {"name": "ada", "consent": "true", "transcript": "Hello there."}
        files = {"audio_sample": recording.getvalue()}
        assert self._client.post("/audio/voices", data=form, files=files).status_code == 201
        self._jobs = {**left, "done": self._submitted("Hi.")}
        until(lambda: all(self._state(id_) == state for state, id_ in self._jobs.items()))
        # The long job blocks all later ones.
        self._jobs["running"] = self._submitted("one two three four five. " * 400)
        until(lambda: self._state(self._jobs["running"]) == "running")
        self._jobs["queued"] = self._submitted("Hi.")
        voice = {"": "ada"}
        self.names = {"id": self._jobs, "name": voice, "voice": voice, "model": {"": "tts-1"}}
        self.asked: Counter[tuple[str, str, str, int]] = Counter()
        """Responses by method, path, state of the job and status."""

    def ask(self, case):
        """Check the response to a case as generated, and with every existing path parameter."""
        answer = case.call_and_validate(checks=CHECKS, timeout=60)
        if answer.status_code == 202:
            # It would run before others.
            self._client.delete(f"/audio/jobs/{answer.json()['id']}")
        if case.method != "DELETE":
            self.ask_of_all(case)

    def ask_of_all(self, case):
        for name in case.path_parameters or ():
            for state, given in self.names[name].items():
                case.path_parameters[name] = given
                answer = case.call_and_validate(checks=CHECKS, timeout=60)
                self.asked[case.method, case.path, state, answer.status_code] += 1

    def close(self):
        self._client.close()

    def _state(self, id_):
        return str(self._client.get(f"/audio/jobs/{id_}").json()["state"])

    def _submitted(self, text):
        made = self._client.post("/audio/jobs", json={"model": "tts-1", "input": text})
        assert made.status_code == 202, made.text
        return str(made.json()["id"])


def cases_of(described, mode, examples, check):
    """Check generated cases of every operation; schemathesis' plugin does not support this pytest."""
    for result in described.get_all_operations():

        @hypothesis.seed(1)
        @hypothesis.settings(
            max_examples=examples,
            deadline=None,
            database=None,
            phases=(hypothesis.Phase.generate,),
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        @hypothesis.given(case=result.ok().as_strategy(generation_mode=mode))
        def ask(case):
            check(case)

        # A request without parameters cannot be invalid.
        with contextlib.suppress(hypothesis.errors.Unsatisfiable):
            ask()


@contextlib.contextmanager
def described(tts, folder, *keys):
    """A server's URL and its OpenAPI document."""
    folders = {f"{kind}_folder": folder / kind for kind in ("voices", "jobs")}
    with ServerOnLoopback.of(tts, keys, **SHORT, **folders) as running:
        yield running.url, schemathesis.openapi.from_url(f"{running.url}/openapi.json")


@pytest.mark.parametrize(
    "examples",
    [pytest.param(EXAMPLES, marks=pytest.mark.long), pytest.param(MANY, marks=pytest.mark.torture)],
)
@pytest.mark.parametrize("mode", schemathesis.GenerationMode)
def test_responses_conform_to_openapi(tts, tmp_path, mode, examples):
    left = left_behind(tmp_path / "jobs")
    with described(tts, tmp_path) as (url, document):
        job, voice = "/v1/audio/jobs/{id}", "/v1/audio/voices/{name}"
        with contextlib.closing(Existing(url, tts, left)) as existing:
            cases_of(document, mode, examples, existing.ask)
            for path, name in ((job, "id"), (voice, "name")):
                existing.ask_of_all(document[path]["DELETE"].Case(path_parameters={name: ""}))
    if mode == schemathesis.GenerationMode.POSITIVE:
        states = existing.names["id"]
        expected = [("GET", job, state, 200) for state in states]
        expected += [("GET", f"{job}/audio", state, 200 if state == "done" else 409) for state in states]
        expected += [("GET", path, "", 200) for path in (voice, f"{voice}/preview", "/v1/models/{model}")]
        expected += [("DELETE", job, state, 200) for state in states] + [("DELETE", voice, "", 200)]
        assert set(expected) <= set(existing.asked), existing.asked


@pytest.mark.long
def test_invalid_key_responses_conform_to_openapi(tts, tmp_path):
    def check(case):
        case.headers.pop("xi-api-key", None)
        answer = case.call(timeout=60, headers={"Authorization": "Bearer wrong"})
        case.validate_response(answer, checks=CHECKS)
        assert answer.status_code == (200 if case.path in OPEN else 401), case.path

    with described(tts, tmp_path, "secret") as (_, document):
        cases_of(document, schemathesis.GenerationMode.POSITIVE, 2, check)
