"""Jobs over HTTP: lifecycle, priority below live speech, limits, and isolation between keys."""

import gc
import io
import os
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import numpy as np
import pytest
import soundfile

from server_on_loopback import ServerOnLoopback
from voxcpm_runtime import Voice, VoxCPM
from voxcpm_runtime.audio.pcm import pcm16
from voxcpm_runtime.batch import lock_step
from voxcpm_runtime.voices.store import built_in_voices
from voxcpm_runtime.words.files import timestamps_file
from voxcpm_server.jobs.store import DONE, FAILED, JobStore
from voxcpm_server.speech.encoding import Encoder
from waiting import until

Serve = Callable[..., Any]


def test_job_lifecycle(serve, jobs, tts, tmp_path):
    client = jobs(serve().url)
    made = client.submit()
    job = made.json()
    assert made.status_code == 202, made.text
    assert made.headers["location"] == f"jobs/{job['id']}"
    text = client.said["input"]
    facts = {
        "object": "audio.job",
        "seed": 7,
        "characters": len(text),
        "voice": "default",
        "excerpt": text[:120],
    }
    assert facts.items() <= job.items()
    done = client.ended(job["id"])
    assert (done["state"], done["segments_done"], done["segments"]) == ("done", 1, 1)
    assert done["created_at"] <= done["started_at"] <= done["ended_at"]
    assert [one["id"] for one in client.get().json()["data"]] == [job["id"]]

    url = f"{client.url}/{job['id']}/audio"
    fetched = httpx2.get(url)
    assert (fetched.headers["content-type"], fetched.headers["cache-control"]) == ("audio/wav", "no-store")
    assert f"{job['id']}.wav" in fetched.headers["content-disposition"]
    assert len(fetched.content) == done["bytes"]
    bytes_per_second = int.from_bytes(fetched.content[28:32], "little")
    assert bytes_per_second == 2 * tts.sample_rate
    # The header has the length, unlike that of a stream.
    assert int.from_bytes(fetched.content[40:44], "little") == done["bytes"] - 44
    expected = tts.generate(text, seed=7)
    assert np.array_equal(client.samples(job["id"]), pcm16(expected))
    assert done["audio_seconds"] == pytest.approx(len(expected) / tts.sample_rate, abs=0.001)
    subtitles = client.get(f"/{job['id']}/subtitles")
    assert subtitles.headers["content-type"] == "application/x-subrip"
    assert subtitles.content == timestamps_file(tts.speak(text, seed=7).words, ".srt")
    part = httpx2.get(url, headers={"Range": "bytes=10-19"})
    assert (part.status_code, part.content) == (206, fetched.content[10:20])
    for asked, status in (("seconds=1-2", 400), ("bytes=", 400), ("bytes=99999999-", 416)):
        wrong = httpx2.get(url, headers={"Range": asked})
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (status, "Range")
    assert wrong.headers["content-range"] == f"bytes */{done['bytes']}"

    assert httpx2.delete(f"{client.url}/{job['id']}").json()["deleted"] is True
    for method, path in (("GET", ""), ("GET", "/audio"), ("DELETE", "")):
        assert httpx2.request(method, f"{client.url}/{job['id']}{path}").status_code == 404
    assert [path.name for path in (tmp_path / "jobs").iterdir() if "sqlite" not in path.name] == ["jobs.lock"]


@pytest.mark.long
def test_download_ends_if_the_client_stops_reading(serve, jobs, tmp_path):
    running = serve(client_timeout=1)
    client = jobs(running.url)
    client.ended(id_ := client.submitted())
    speech = tmp_path / "jobs" / id_ / "speech.wav"
    os.truncate(speech, 1 << 26)
    with socket.create_connection(running.address) as connection:
        connection.sendall(f"GET /v1/audio/jobs/{id_}/audio HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        time.sleep(2)
        connection.settimeout(10)
        received = 0
        while part := connection.recv(1 << 20):
            received += len(part)
    assert received < speech.stat().st_size


@pytest.mark.long
def test_job_keeps_its_recordings_and_voice_if_the_voice_is_deleted(serve, jobs, tts, spoken, tmp_path):
    client, file = jobs(serve().url), io.BytesIO()
    soundfile.write(file, spoken.audio, spoken.sample_rate, format="WAV")
    transcript, text = spoken.segments[0].text, client.said["input"]
    voice = tts.create_voice((spoken.audio, spoken.sample_rate), transcript, name="ada")
    (tmp_path / "voices").mkdir()
    voice.save(tmp_path / "voices" / "ada.voice")
    form = {**client.said, "seed": "7", "prompt_text": transcript}
    with_file = httpx2.post(client.url, data=form, files={"prompt_audio": file.getvalue()}).json()["id"]
    # Without a seed, the job draws one and keeps it across restarts.
    with_voice = client.submit(voice="ada", seed=None).json()
    (tmp_path / "voices" / "ada.voice").unlink()
    assert {client.ended(id_)["state"] for id_ in (with_file, with_voice["id"])} == {"done"}
    expected = tts.generate(text, io.BytesIO(file.getvalue()), transcript, seed=7)
    assert np.array_equal(client.samples(with_file), pcm16(expected))
    expected = tts.generate(text, voice=voice, seed=with_voice["seed"])
    assert np.array_equal(client.samples(with_voice["id"]), pcm16(expected))


def test_keys_see_only_their_jobs_and_share_the_limit(serve, jobs, monkeypatch):
    counts = JobStore.counts

    def slowly(*given):
        found = counts(*given)
        time.sleep(0.1)
        return found

    monkeypatch.setattr(JobStore, "counts", slowly)
    client = jobs(serve(keys=("first", "second"), max_jobs=4).url)
    first, second = ({"Authorization": f"Bearer {key}"} for key in ("first", "second"))
    id_ = client.submit("first").json()["id"]
    for method, path in (("GET", ""), ("GET", "/audio"), ("DELETE", "")):
        assert httpx2.request(method, f"{client.url}/{id_}{path}", headers=second).status_code == 404
    assert client.get(headers=second).json()["data"] == []
    assert client.get(f"/{id_}", headers=first).status_code == 200
    # A key may use half of the limit.
    assert client.submit("first").status_code == 202
    full = client.submit("first")
    assert (full.status_code, full.json()["error"]["code"]) == (429, "too_many_jobs")
    assert int(full.headers["retry-after"]) >= 1
    with ThreadPoolExecutor(6) as threads:
        answers = list(threads.map(lambda key: client.submit(key).status_code, ["second"] * 6))
    assert sorted(answers) == [202, 202, 503, 503, 503, 503]


def test_live_speech_takes_priority_and_the_job_continues_after_it(serve, jobs, tts, long_samples):
    running = serve(concurrency=1)
    client = jobs(running.url)
    id_ = client.submitted(input=client.long)
    client.when(id_, lambda job: job["audio_seconds"] > 0)
    answer = running.speak(response_format="pcm", seed=3, stream=False)
    during = client.job(id_)
    assert answer.status_code == 200
    # It ran between two patches, long before the end of the job.
    assert during["state"] == "running"
    assert during["audio_seconds"] < len(long_samples) / tts.sample_rate / 2
    later = client.when(id_, lambda job: job["remaining_seconds"] is not None)
    assert later["segments_done"] >= 1
    assert client.ended(id_)["state"] == "done"
    assert np.array_equal(client.samples(id_), long_samples)


def test_a_job_speaks_segments_at_once_and_lets_a_request_pass_between_their_calls(
    together_bundle, jobs, tmp_path, monkeypatch
):
    groups, together = list[int](), lock_step.in_lock_step
    with VoxCPM.from_bundle(together_bundle, "int8") as tts:
        alone = pcm16(tts.generate(jobs("").long, seed=7))
        monkeypatch.setattr(
            lock_step, "in_lock_step", lambda *given: groups.append(len(given[1])) or together(*given)
        )
        folders = {"voices_folder": tmp_path / "voices", "jobs_folder": tmp_path / "jobs"}
        with ServerOnLoopback.of(tts, concurrency=1, **folders) as running:
            client = jobs(running.url)
            id_ = client.submitted(input=client.long)
            until(lambda: groups)
            assert running.speak(response_format="pcm", seed=3, stream=False).status_code == 200
            during = client.job(id_)
            assert (during["state"], during["segments_done"]) == ("running", 0)
            assert client.ended(id_)["state"] == "done"
            assert np.array_equal(client.samples(id_), alone)
    assert groups[0] == 4


def test_running_or_queued_job_is_cancelled_and_the_next_one_runs(serve, jobs, tmp_path, caplog, monkeypatch):
    started, start_next = list[str](), JobStore.start_next

    def start(*given):
        job = start_next(*given)
        started.extend([job.id] if job else [])
        return job

    monkeypatch.setattr(JobStore, "start_next", start)
    running = serve(concurrency=1)
    client = jobs(running.url)
    first, second = (client.submitted(input=client.long * 20) for _ in range(2))
    third = client.submitted()
    client.when(first, lambda job: job["state"] == "running")
    assert client.get(f"/{third}/audio").status_code == 409
    assert httpx2.delete(f"{client.url}/{first}", timeout=10).status_code == 200
    assert not (tmp_path / "jobs" / first).exists()
    client.when(second, lambda job: job["audio_seconds"] > 0)
    live = {"model": "tts-1", "input": client.long * 5, "response_format": "pcm"}
    with httpx2.stream("POST", f"{running.url}/v1/audio/speech", json=live) as answer:
        next(parts := answer.iter_raw())
        assert httpx2.delete(f"{client.url}/{second}", timeout=10).status_code == 200
        assert running.service.queue.busy == 1
        del parts
    assert client.ended(third)["state"] == "done"
    assert started == [first, second, third]
    until(lambda: running.service.queue.busy == 0)
    gc.collect()
    assert "never retrieved" not in caplog.text


def test_old_jobs_expire_and_the_list_is_paginated(serve, jobs, tmp_path):
    store = JobStore(tmp_path / "jobs")
    ids = [store.add("", {**jobs.said, "voice": {"id": "ada"}}, 7, 1, {}, None).id for _ in range(6)]
    store.change(ids[0], state=DONE, ended=time.time() - 2.1 * 86_400)
    for id_ in ids[1:]:
        store.change(id_, state=FAILED, ended=time.time() - 1.9 * 86_400)
    store.close()
    client = jobs(serve(jobs_keep_days=2).url)
    until(lambda: not (tmp_path / "jobs" / ids[0]).exists())
    first = client.get(params={"limit": 3}).json()
    rest = client.get(params={"limit": 3, "after": first["data"][-1]["id"]}).json()
    assert [job["id"] for job in first["data"] + rest["data"]] == ids[:0:-1]
    assert first["data"][0]["voice"] == "ada"
    assert (first["has_more"], rest["has_more"]) == (True, False)
    assert client.get(params={"limit": 0}).status_code == 400


def test_speech_whose_state_was_lost_is_not_spoken_again(serve, jobs, tmp_path):
    """The server was killed, or its disk was full, between the file and the state."""
    store = JobStore(tmp_path / "jobs")
    job = store.add("", jobs.said, 7, 1, {}, None)
    (store.path(job.id) / job.audio_name).write_bytes(b"spoken before")
    store.close()
    client = jobs(serve().url)
    assert client.ended(job.id)["state"] == "done"
    assert client.get(f"/{job.id}/audio").content == b"spoken before"


def test_server_without_jobs_reports_it(serve, jobs):
    for method in ("GET", "POST"):
        answer = httpx2.request(method, jobs(serve(max_jobs=0).url).url, json=jobs.said)
        # Not 503, on which clients would retry.
        assert (answer.status_code, answer.json()["error"]["code"]) == (501, "no_jobs")


def test_a_job_keeps_the_default_voice_with_which_it_was_submitted(serve, jobs, tmp_path):
    client = jobs(serve().url)
    id_ = client.submitted(voice="default")
    assert Voice.load(tmp_path / "jobs" / id_ / "voice.voice") == built_in_voices()["heart"]
    assert client.ended(id_)["state"] == "done"
    assert not list((tmp_path / "jobs").rglob("*.prefix"))


@pytest.mark.robustness
def test_job_resumes_after_finished_segments_when_its_server_was_killed(
    started, jobs, long_samples, tmp_path
):
    process, url = started()
    folder = tmp_path / "jobs"
    client = jobs(url)
    id_ = client.submitted(input=client.long)
    client.when(id_, lambda job: job["segments_done"])
    process.kill()
    process.wait()
    saved = {path: path.stat().st_mtime_ns for path in (folder / id_).rglob("*.segment")}
    assert saved
    assert not (folder / id_ / "speech.wav").exists()
    client = jobs(started()[1])
    resumed = client.when(id_, lambda job: job["state"] == "running")
    assert resumed["segments_done"] >= len(saved)
    again = {path: path.stat().st_mtime_ns for path in (folder / id_).rglob("*.segment")}
    # They are deleted only when the job is done.
    assert saved.items() <= again.items() or client.job(id_)["state"] == "done"
    assert client.ended(id_)["error"] is None
    assert np.array_equal(client.samples(id_), long_samples)
    until(
        lambda: (
            {path.name for path in (folder / id_).iterdir()} == {"speech.wav", "speech.srt", "voice.voice"}
        )
    )


def test_invalid_jobs_are_rejected_on_submission(serve, jobs, tmp_path):
    client = jobs(serve(max_job_characters=200).url)
    for fields, status, words in (
        ({"input": "a" * 201}, 400, "at most 200"),
        ({"voice": "nobody"}, 404, "unknown"),
    ):
        answer = client.submit(**fields)
        assert answer.status_code == status, answer.text
        assert words in answer.json()["error"]["message"]
    assert not list((tmp_path / "jobs").glob("job_*"))


def test_subtitles_of_a_job_have_the_times_of_the_decoded_audio(serve, jobs, tts):
    client = jobs(serve().url)
    client.ended(id_ := client.submitted(response_format="mp3"))
    words = Encoder("mp3", tts.sample_rate).heard(tts.speak(client.said["input"], seed=7).words)
    assert httpx2.get(f"{client.url}/{id_}/subtitles").content == timestamps_file(words, ".srt")
