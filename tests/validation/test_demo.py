"""The lines of `make demo` about what a recogniser hears."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from voxcpm_validation import demo

SPEECH = SimpleNamespace(audio=np.zeros(16000, np.float32), sample_rate=16000)


@pytest.fixture
def hears(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """hears(text): the recogniser's transcript from now on."""

    def given(text: str) -> None:
        monkeypatch.setattr(demo, "Recogniser", lambda: SimpleNamespace(transcribe=lambda audio, rate: text))

    return given


def test_what_was_heard_stands_beside_what_was_asked_with_the_word_error_rate(hears) -> None:
    hears("The cat sat on a mat.")
    asked, heard, rate = demo.heard_lines("the cat sat on the mat. [it slept]!", SPEECH)
    assert asked.endswith("the cat sat on the mat. [it slept]!")
    assert heard.endswith("The cat sat on a mat.")
    # What stands in brackets is asked for, too: of eight words one is another, and two are missing.
    assert "word error rate 38 % (3 of 8 words)" in rate


@pytest.mark.parametrize("module", ["faster_whisper", "jiwer"])
def test_without_the_extra_one_line_says_so(monkeypatch: pytest.MonkeyPatch, module: str, hears) -> None:
    if module == "jiwer":
        hears("hello")
    monkeypatch.setitem(sys.modules, module, None)
    (line,) = demo.heard_lines("hello", SPEECH)
    assert f"{module} is missing" in line
    assert "voxcpm-coreml[listen]" in line
