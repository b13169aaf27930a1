import re
import time

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
    "can't": "cahnt",
    "can": "ken",
    "caf\u00e9": "kaffay",
    "5": "fiver",
    "a": "ay",
    "ada": "ayda",
    "u.s.": "you ess",
}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Nguyen's, NGUYEN and nguyen.", "win's, win and win."),
        ("Nguyens, McNguyen, nguyen_2", "Nguyens, McNguyen, nguyen_2"),
        # The longest first, over a line's end, and in its own case only.
        ("York, New\nYork, new york", "yawk, noo york, new york"),
        ("The US and us, Us.", "The you ess and uz, uz."),
        ("C++ or c, c++ (C)", "see plus plus or see, c++ (see)"),
        ("我叫阮文。", "我叫软文。"),
        ("{nguyen c} c", "{nguyen c} see"),
        ("can’t, CAN'T, can, can's", "cahnt, cahnt, ken, ken's"),
        ("o'can can'o o’can can’o", "o'can can'o o’can can’o"),
        ("caf\u00e9, Cafe\u0301. cafe\u0301s", "kaffay, kaffay. cafe\u0301s"),
        ("$5.00 5.5 1,5 5% 5:30 1-5 -5 5, (5)", "$5.00 5.5 1,5 5% 5:30 1-5 -5 fiver, (fiver)"),
        ("U.S.A. a U.S. A. Ada-like ada@x.org, @ada", "U.S.A. ay you ess ay. ayda-like ada@x.org, @ada"),
    ],
)
def test_whole_words_are_replaced_and_nothing_is_replaced_twice(text, said):
    assert pronounced(text, LEXICON) == said
    assert pronounced(text, {}) == text


def test_a_large_lexicon_is_read_in_one_pass():
    large = {f"word{n} two": str(n) for n in range(100_000)}
    began = time.process_time()
    assert pronounced("word7 two, word99999 Two word5.", large) == "7, 99999 word5."
    assert time.process_time() - began < 10


def test_the_last_of_several_sources_wins(tmp_path):
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
def test_what_is_no_lexicon_is_one_line(tmp_path, content, message):
    if content is not None:
        (tmp_path / "names.tsv").write_bytes(content)
    with pytest.raises(InputError, match=re.escape(message)):
        lexicon_entries(tmp_path / "names.tsv")
    for wrong in (3, {"a": 1}, b"a"):
        with pytest.raises(InputError, match="lexicon"):
            lexicon_entries(wrong)
