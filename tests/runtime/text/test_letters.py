"""Texts for a vocabulary of letters."""

from __future__ import annotations

import pytest

from voxcpm_constants.errors import InputError
from voxcpm_conversion.default_bundle import DEFAULT_CHECKPOINT
from voxcpm_runtime.text.normalization import spelled, spelled_transcript
from voxcpm_runtime.text.tokenizer import TextTokenizer


@pytest.fixture(scope="module")
def letters() -> TextTokenizer:
    return TextTokenizer.from_folder(DEFAULT_CHECKPOINT)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("你好 there", "cannot say '你', '好'; "),
        ("the λόγος", "cannot say 'λ', 'ο', 'γ', 'ς'; "),
        ("...", "nothing is left to say"),
    ],
)
def test_what_cannot_be_said_is_refused(letters: TextTokenizer, text: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        spelled(text, letters)


def test_a_transcript_is_parted_from_what_follows(letters: TextTokenizer) -> None:
    assert spelled_transcript("they went", letters) == "they went. "
    assert spelled_transcript("they went. ", letters) == "they went. "
    assert spelled_transcript("", letters) == ""


def test_a_vocabulary_with_digits_is_left_alone(shared_data) -> None:
    published = TextTokenizer.from_folder(shared_data / "tokenizer")
    assert spelled("“3 naïve” 你好", published) == "“3 naïve” 你好"
    assert spelled_transcript("said", published) == "said"
