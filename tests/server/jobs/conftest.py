import io
from typing import Any, ClassVar

import httpx2
import pytest
import soundfile

from voxcpm_runtime.audio.pcm import pcm16
from waiting import until

SENTENCE = "one two three four five six seven."


class Client:
    """A client of a server's job API."""

    said: ClassVar[Any] = {
        "model": "tts-1",
        "input": SENTENCE,
        "response_format": "wav",
        "seed": 7,
        "voice": "default",
    }
    long = "\n\n".join([f"{SENTENCE} {SENTENCE}"] * 4)

    def __init__(self, url):
        self.url = f"{url}/v1/audio/jobs"

    def get(self, path="", **given):
        return httpx2.get(self.url + path, **given)

    def submit(self, key="", **fields):
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return httpx2.post(self.url, json={**self.said, **fields}, headers=headers)

    def submitted(self, **fields):
        """The id of a new job."""
        answer = self.submit(**fields)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    def job(self, id_):
        answer = httpx2.get(f"{self.url}/{id_}")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def when(self, id_, happened):
        """The job once it is in that state."""
        return dict(until(lambda: (job := self.job(id_)) and happened(job) and job))

    def ended(self, id_):
        return self.when(id_, lambda job: job["state"] in ("done", "failed"))

    def samples(self, id_):
        """The speech of a job as 16-bit samples (samples,)."""
        answer = httpx2.get(f"{self.url}/{id_}/audio")
        assert answer.status_code == 200, answer.text
        return soundfile.read(io.BytesIO(answer.content), dtype="int16")[0]


@pytest.fixture
def jobs():
    """jobs(url): a client of a server's jobs."""
    return Client


@pytest.fixture(scope="session")
def long_samples(tts):
    """The runtime's speech of `Client.long` with seed 7, as 16-bit samples (samples,)."""
    return pcm16(tts.generate(Client.long, seed=7))
