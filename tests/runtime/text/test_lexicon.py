"""Lexicons: which words of a text are said differently, and which files are lexicons."""

import re

import pytest

from voxcpm_constants.errors import InputError
from voxcpm_runtime.text.lexicon import lexicon_entries, pronounced

LEXICON = {
    "nguyen": "win",
    "New York": "noo york",
    "York": "yawk",
    "US": "you ess",
    "us": "uz",
    "C++": "see plus plus",
    "阮": "软",
    "c": "see",
}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Nguyen's, NGUYEN and nguyen.", "win's, win and win."),
        ("Nguyens, McNguyen, nguyen_2", "Nguyens, McNguyen, nguyen_2"),
        # The longest first, over a line's end, and in its own case only.
        ("York, New\nYork, new york", "yawk, noo york, new york"),
        ("The US and us, Us.", "The you ess and uz, uz."),
        ("C++ or c, c++ (C)", "see plus plus or see, see++ (see)"),
        ("我叫阮文。", "我叫软文。"),
        ("{nguyen c} c", "{nguyen c} see"),
        ("nothing of these", "nothing of these"),
    ],
)
def test_whole_words_are_replaced_and_nothing_is_replaced_twice(text: str, said: str) -> None:
    assert pronounced(text, LEXICON) == said
    assert pronounced(text, {}) == text


def test_the_last_of_several_sources_wins(tmp_path) -> None:
    file = tmp_path / "names.tsv"
    file.write_text("\ufeff# names\n\nnguyen\twin\r\n#1\tnumber one\nada \t ay da\n", encoding="utf-8")
    assert lexicon_entries(file) == {"nguyen": "win", "#1": "number one", "ada": "ay da"}
    assert lexicon_entries([str(file), {"ada": "aah da"}])["ada"] == "aah da"
    assert lexicon_entries(None) == {}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a\tb\nword\n", "line 2: expected WRITTEN, a tab, SAID, got 'word' and ''"),
        (b"\tb\n", "line 1: expected WRITTEN"),
        (b"\xff", "expected UTF-8"),
        (None, "cannot be read (No such file"),
    ],
)
def test_what_is_no_lexicon_is_one_line(tmp_path, content, message: str) -> None:
    if content is not None:
        (tmp_path / "names.tsv").write_bytes(content)
    with pytest.raises(InputError, match=re.escape(message)):
        lexicon_entries(tmp_path / "names.tsv")
    for wrong in (3, {"a": 1}, b"a"):
        with pytest.raises(InputError, match="lexicon"):
            lexicon_entries(wrong)
