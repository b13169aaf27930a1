"""Words that a job's speech lacks."""

from collections.abc import Callable
from typing import Any

import httpx2
import pytest

pytestmark = pytest.mark.filterwarnings("ignore:segment")
TEXT = "Hello there, my friend. How are you today?"


def test_a_job_lists_words_that_are_not_said(
    serve: Callable[..., Any], jobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The stop head, which ends this speech after "friend.", is believed at once, and nothing is retried.
    monkeypatch.setattr("voxcpm_runtime.words.coverage._PATIENCE", -100)
    monkeypatch.setattr("voxcpm_runtime.speech.attempts._missed", lambda _: 0)
    client = jobs(serve().url)
    done = client.ended(client.submitted(input=TEXT, voice="emma", seed=0))
    assert [word["place"] for word in done["unsaid"]] == [24, 28, 32, 36]
    assert [word["word"] for word in done["unsaid"]] == ["How", "are", "you", "today?"]
    assert done["repeated"] == []
    subtitles = httpx2.get(f"{client.url}/{done['id']}/subtitles").text
    assert "friend." in subtitles
    assert "How" not in subtitles
