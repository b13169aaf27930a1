"""Lexicons: which words of a text are said differently, and which files are lexicons.

The tables are those of the Swift package's tests, too.
"""

import json
import re
import time
from pathlib import Path

import pytest

from voxcpm_constants.errors import InputError
from voxcpm_runtime.text.lexicon import lexicon_entries, pronounced

TABLES = json.loads((Path(__file__).parents[2] / "marked_up_texts.json").read_text(encoding="utf-8"))
LEXICON = TABLES["lexicon"]


@pytest.mark.parametrize(("text", "said"), TABLES["pronounced"])
def test_whole_words_are_replaced_and_nothing_is_replaced_twice(text, said):
    assert pronounced(text, LEXICON) == said
    assert pronounced(text, {}) == pronounced(text, {"": "x"}) == text


def test_a_large_lexicon_is_read_in_one_pass():
    large = {f"word{n} two": str(n) for n in range(100_000)}
    began = time.process_time()
    assert pronounced("word7 two, word99999 Two word5.", large) == "7, 99999 word5."
    assert time.process_time() - began < 10


@pytest.mark.filterwarnings("ignore:this voice has no token")
def test_the_parts_of_a_text_share_a_large_lexicon(tts):
    large = {f"word{n}": "said" for n in range(100_000)}
    began = time.process_time()
    plan = tts.plan("Hello word5. [pause 0.1s] " * 300, markup=True, lexicon=large)
    assert [segment.said for segment in plan.segments] == ["Hello said."] * 300
    assert time.process_time() - began < 6


def test_the_last_of_several_sources_wins(tmp_path):
    file = tmp_path / "names.tsv"
    content, entries = TABLES["lexicon_files"][0]
    file.write_text(content, encoding="utf-8")
    assert lexicon_entries(file) == entries
    assert lexicon_entries([str(file), {"ada": "aah da"}])["ada"] == "aah da"
    assert lexicon_entries(None) == {}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        *((content.encode(), message) for content, message in TABLES["lexicon_files"][1:]),
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
