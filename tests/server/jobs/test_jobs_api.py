"""Jobs over HTTP: submitted, watched, fetched, deleted; fair to live speech; bounded; a key's own."""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import soundfile

from voxcpm_runtime import Plan, pcm16
from voxcpm_server.jobs.store import DONE, FAILED, JobStore
from waiting import until

SENTENCE = "one two three four five six seven."
LONG = "\n\n".join([f"{SENTENCE} {SENTENCE}"] * 4)
SAID = {"model": "tts-1", "input": SENTENCE, "response_format": "wav", "seed": 7}


@pytest.fixture(scope="module")
def long_samples(tts: Any) -> Any:
    """What the runtime itself says with seed 7: `LONG`, as 16-bit samples."""
    return pcm16(tts.generate(LONG, seed=7))


def submit(url: str, key: str | None = None, **fields: Any) -> httpx2.Response:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    return httpx2.post(f"{url}/v1/audio/jobs", json={**SAID, **fields}, headers=headers, timeout=60)


def job_of(url: str, id_: str) -> dict[str, Any]:
    answer = httpx2.get(f"{url}/v1/audio/jobs/{id_}", timeout=60)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def ended(url: str, id_: str) -> dict[str, Any]:
    return until(lambda: (job := job_of(url, id_))["state"] in ("done", "failed") and job)


def samples(content: bytes) -> np.ndarray:
    audio, _ = soundfile.read(io.BytesIO(content), dtype="int16")
    return audio


def test_the_life_of_a_job(serve: Callable[..., Any], tts: Any, tmp_path: Path) -> None:
    running = serve()
    jobs = f"{running.url}/v1/audio/jobs"

    made = submit(running.url)
    job = made.json()
    assert made.status_code == 202, made.text
    assert made.headers["location"] == f"/v1/audio/jobs/{job['id']}"
    described = httpx2.get(f"{running.url}/openapi.json").json()["paths"]["/v1/audio/jobs"]["post"]
    assert "Location" in described["responses"]["202"]["headers"]
    assert (job["object"], job["seed"], job["characters"]) == ("audio.job", 7, len(SENTENCE))
    done = ended(running.url, job["id"])
    assert done["state"] == "done", done
    assert done["segments_done"] == done["segments"] == 1
    assert [one["id"] for one in httpx2.get(jobs).json()["data"]] == [job["id"]]

    fetched = httpx2.get(f"{jobs}/{job['id']}/audio")
    assert fetched.headers["content-type"] == "audio/wav"
    assert f"{job['id']}.wav" in fetched.headers["content-disposition"]
    assert len(fetched.content) == done["bytes"]
    expected = tts.generate(SENTENCE, seed=7)
    assert np.array_equal(samples(fetched.content), pcm16(expected))
    assert done["audio_seconds"] == pytest.approx(len(expected) / tts.sample_rate, abs=0.001)
    part = httpx2.get(f"{jobs}/{job['id']}/audio", headers={"Range": "bytes=10-19"})
    assert (part.status_code, part.content) == (206, fetched.content[10:20])
    for asked, status in (("seconds=1-2", 400), ("bytes=", 400), ("bytes=99999999-", 416)):
        wrong = httpx2.get(f"{jobs}/{job['id']}/audio", headers={"Range": asked})
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (status, "Range")
    assert wrong.headers["content-range"] == f"bytes */{done['bytes']}"

    assert httpx2.delete(f"{jobs}/{job['id']}").json()["deleted"] is True
    for path in (job["id"], f"{job['id']}/audio"):
        assert httpx2.get(f"{jobs}/{path}").status_code == 404
    assert httpx2.delete(f"{jobs}/{job['id']}").status_code == 404
    assert sorted(path.name for path in (tmp_path / "jobs").iterdir() if "sqlite" not in path.name) == [
        "jobs.lock"
    ]


def test_a_text_is_read_no_longer_than_its_client_stays(
    serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A book of 306 segments, each of which takes a tenth of a second to read."""
    read: list[str] = []
    read_segment = Plan.read_segment

    def slowly(plan: Plan, *given: Any) -> Any:
        read.append(given[0].text)
        time.sleep(0.1)
        return read_segment(plan, *given)

    monkeypatch.setattr(Plan, "read_segment", slowly)
    url = f"{serve().url}/v1/audio/jobs"
    with pytest.raises(httpx2.ReadTimeout):
        httpx2.post(url, json={**SAID, "input": "Hello. " * 10_000}, timeout=2)

    until(lambda: not any(thread.name == "bundle" for thread in threading.enumerate()))
    assert 0 < len(read) < 200
    assert httpx2.get(url).json()["data"] == []


def test_a_job_with_recordings_and_a_voice_that_is_deleted_meanwhile(
    serve: Callable[..., Any], tts: Any, spoken: Any, tmp_path: Path
) -> None:
    running = serve(concurrency=1)
    file = io.BytesIO()
    soundfile.write(file, spoken.audio, spoken.sample_rate, format="WAV")
    voice = tts.create_voice((spoken.audio, spoken.sample_rate), spoken.segments[0].text, name="ada")
    (tmp_path / "voices").mkdir()
    voice.save(tmp_path / "voices" / "ada.voice")

    form = {**SAID, "seed": "7", "prompt_text": spoken.segments[0].text}
    with_file = httpx2.post(
        f"{running.url}/v1/audio/jobs", data=form, files={"prompt_audio": file.getvalue()}, timeout=60
    ).json()
    with_voice = submit(running.url, voice="ada").json()
    (tmp_path / "voices" / "ada.voice").unlink()

    audio = []
    for job in (with_file, with_voice):
        assert ended(running.url, job["id"])["state"] == "done"
        content = httpx2.get(f"{running.url}/v1/audio/jobs/{job['id']}/audio").content
        audio.append(samples(content))
    expected = [
        tts.generate(SENTENCE, io.BytesIO(file.getvalue()), spoken.segments[0].text, seed=7),
        tts.generate(SENTENCE, voice=voice, seed=7),
    ]
    for got, wanted in zip(audio, expected, strict=True):
        assert np.array_equal(got, pcm16(wanted))


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({"input": ""}, 400, "at least 1 character"),
        ({"input": "a" * 201}, 400, "at most 200 characters"),
        ({"input": " \n"}, 400, "empty"),
        ({"model": "tts-9"}, 404, "expected one of"),
        ({"voice": "nobody"}, 404, "no voice"),
        ({"sample_rate": 12_345, "response_format": "mp3"}, 400, "mp3 has 8000"),
        ({"cfg_value": 99}, 400, "cfg_value"),
    ],
)
def test_what_cannot_be_spoken_is_refused_at_once(
    fields: dict[str, Any], status: int, words: str, serve: Callable[..., Any], tmp_path: Path
) -> None:
    running = serve(max_job_characters=200)
    answer = submit(running.url, **fields)

    assert answer.status_code == status, answer.text
    assert words in answer.json()["error"]["message"]
    assert not list((tmp_path / "jobs").glob("job_*"))


def test_keys_do_not_see_each_others_jobs(serve: Callable[..., Any]) -> None:
    running = serve(keys=("first", "second"), max_jobs=4)
    jobs = f"{running.url}/v1/audio/jobs"
    first, second = ({"Authorization": f"Bearer {key}"} for key in ("first", "second"))

    id_ = submit(running.url, "first").json()["id"]
    for method, path in (("GET", ""), ("GET", "/audio"), ("DELETE", "")):
        assert httpx2.request(method, f"{jobs}/{id_}{path}", headers=second).status_code == 404
    assert httpx2.get(jobs, headers=second).json()["data"] == []
    assert httpx2.get(f"{jobs}/{id_}", headers=first).status_code == 200
    assert httpx2.get(f"{jobs}/{id_}").status_code == 401
    # A key may have half of the jobs.
    assert submit(running.url, "first").status_code == 202
    full = submit(running.url, "first")
    assert (full.status_code, full.json()["error"]["code"]) == (429, "too_many_jobs")
    assert int(full.headers["retry-after"]) >= 1
    assert [submit(running.url, "second").status_code for _ in range(3)] == [202, 202, 503]


def test_live_speech_goes_first_and_a_job_goes_on_behind_it(
    serve: Callable[..., Any], tts: Any, long_samples: np.ndarray
) -> None:
    running = serve(concurrency=1)
    job = submit(running.url, input=LONG).json()
    assert job["segments"] > 1
    until(lambda: job_of(running.url, job["id"])["audio_seconds"] > 0)

    began = time.perf_counter()
    live = {"model": "tts-1", "input": "Hello.", "response_format": "pcm", "seed": 3, "stream": False}
    answer = httpx2.post(f"{running.url}/v1/audio/speech", json=live, timeout=60)
    waited = time.perf_counter() - began
    during = job_of(running.url, job["id"])

    assert answer.status_code == 200
    # It was let in between two patches, long before the end of the job.
    assert during["state"] == "running"
    assert during["audio_seconds"] < len(long_samples) / tts.sample_rate / 2, (waited, during)
    done = ended(running.url, job["id"])
    assert done["state"] == "done"
    content = httpx2.get(f"{running.url}/v1/audio/jobs/{job['id']}/audio").content
    assert np.array_equal(samples(content), long_samples)


def test_a_job_that_runs_is_cancelled_and_the_next_one_spoken(
    serve: Callable[..., Any], tmp_path: Path
) -> None:
    running = serve()
    first, second = submit(running.url, input=LONG).json(), submit(running.url).json()
    until(lambda: job_of(running.url, first["id"])["state"] == "running")
    assert httpx2.get(f"{running.url}/v1/audio/jobs/{second['id']}/audio").status_code == 409

    began = time.perf_counter()
    assert httpx2.delete(f"{running.url}/v1/audio/jobs/{first['id']}", timeout=60).status_code == 200
    assert time.perf_counter() - began < 10
    assert not (tmp_path / "jobs" / first["id"]).exists()
    assert ended(running.url, second["id"])["state"] == "done"
    until(lambda: running.service.queue.busy == 0)


def test_a_server_that_ends_leaves_its_job_to_the_next_one(
    serve: Callable[..., Any], long_samples: np.ndarray, tmp_path: Path
) -> None:
    before = serve()
    job = submit(before.url, input=LONG).json()
    until(lambda: job_of(before.url, job["id"])["segments_done"])
    before.stop()
    saved = {path.name: path.stat().st_mtime_ns for path in tmp_path.rglob("*.segment")}
    assert saved

    after = serve(concurrency=1)
    resumed = until(lambda: (now := job_of(after.url, job["id"]))["state"] == "running" and now)
    assert resumed["segments_done"] >= len(saved)
    again = {path.name: path.stat().st_mtime_ns for path in tmp_path.rglob("*.segment")}
    # They are deleted when the job is done, and not before.
    assert saved.items() <= again.items() or job_of(after.url, job["id"])["state"] == "done"
    assert ended(after.url, job["id"])["state"] == "done"
    content = httpx2.get(f"{after.url}/v1/audio/jobs/{job['id']}/audio").content
    assert np.array_equal(samples(content), long_samples)
    until(lambda: not list(tmp_path.rglob("*.segment*")))


def test_files_of_jobs_are_bounded(serve: Callable[..., Any]) -> None:
    running = serve(max_jobs_megabytes=0.2)
    job = submit(running.url, input=LONG).json()

    failed = ended(running.url, job["id"])
    assert (failed["state"], failed["error"]["code"]) == ("failed", "storage")
    assert "the most that they may" in failed["error"]["message"]
    assert httpx2.get(f"{running.url}/v1/audio/jobs/{job['id']}/audio").status_code == 409
    # Its segments are gone, so that there is room again.
    assert submit(running.url).status_code == 202


def test_a_full_disk_is_one_line_and_the_server_goes_on(
    serve: Callable[..., Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    running = serve()
    assert ended(running.url, submit(running.url).json()["id"])["state"] == "done"
    store = running.service.rooms["jobs"]._opened
    pages = store._rows.execute("PRAGMA page_count").fetchone()[0]
    store._rows.execute(f"PRAGMA max_page_count = {pages}")

    answers = [submit(running.url, input=SENTENCE * 30) for _ in range(6)]
    full = answers[-1]
    assert full.status_code == 507, full.text
    assert full.json()["error"]["code"] == "storage"
    assert str(tmp_path) not in full.text
    assert "is full" in caplog.text
    known = {job["id"] for job in httpx2.get(f"{running.url}/v1/audio/jobs").json()["data"]}
    assert {folder.name for folder in (tmp_path / "jobs").glob("job_*")} == known
    live = {"model": "tts-1", "input": "Hello.", "stream": False}
    assert httpx2.post(f"{running.url}/v1/audio/speech", json=live, timeout=60).status_code == 200


def test_a_job_that_ends_the_server_again_and_again_is_given_up(
    serve: Callable[..., Any], tmp_path: Path
) -> None:
    store = JobStore(tmp_path / "jobs")
    job = store.add(store.new_folder(), "", {**SAID, "voice": "default"}, 7, 1)
    store.change(job.id, starts=3)
    store.close()

    failed = ended(serve().url, job.id)
    assert failed["state"] == "failed"
    assert "begun 3 times" in failed["error"]["message"]


def test_old_jobs_are_deleted(serve: Callable[..., Any], tmp_path: Path) -> None:
    store = JobStore(tmp_path / "jobs")
    old, young = (store.add(store.new_folder(), "", {**SAID, "voice": "default"}, 7, 1) for _ in range(2))
    store.change(old.id, state=DONE, ended=time.time() - 2.1 * 86_400)
    store.change(young.id, state=FAILED, ended=time.time() - 1.9 * 86_400)
    store.close()

    running = serve(jobs_keep_days=2)
    until(lambda: not (tmp_path / "jobs" / old.id).exists())
    listed = httpx2.get(f"{running.url}/v1/audio/jobs").json()
    assert [job["id"] for job in listed["data"]] == [young.id]


def test_the_list_is_cut_into_pages(serve: Callable[..., Any], tmp_path: Path) -> None:
    store = JobStore(tmp_path / "jobs")
    for _ in range(5):
        job = store.add(store.new_folder(), "", {**SAID, "voice": {"id": "ada"}}, 7, 1)
        store.change(job.id, state=DONE, ended=time.time())
    latest_first = [job.id for job in store.of_owner("")]
    store.close()
    jobs = f"{serve().url}/v1/audio/jobs"

    first = httpx2.get(jobs, params={"limit": 3}).json()
    rest = httpx2.get(jobs, params={"limit": 3, "after": first["data"][-1]["id"]}).json()
    assert [job["id"] for job in first["data"] + rest["data"]] == latest_first
    assert (first["has_more"], rest["has_more"]) == (True, False)
    assert httpx2.get(jobs, params={"limit": 0}).status_code == 400


def test_a_server_without_jobs_says_so(serve: Callable[..., Any]) -> None:
    running = serve(max_jobs=0)

    for method in ("GET", "POST"):
        answer = httpx2.request(method, f"{running.url}/v1/audio/jobs", json=SAID)
        # Not 503: that would ask clients to come again.
        assert (answer.status_code, answer.json()["error"]["code"]) == (501, "no_jobs")


def test_many_submissions_at_once_stay_within_the_limit(serve: Callable[..., Any]) -> None:
    running = serve(max_jobs=3)
    statuses: list[int] = []
    threads = [
        threading.Thread(target=lambda: statuses.append(submit(running.url).status_code)) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(statuses) == [202] * 3 + [503] * 5
    listed = httpx2.get(f"{running.url}/v1/audio/jobs").json()["data"]
    assert len(listed) == 3
    assert len(json.dumps(listed)) < 5000
