import csv
import string
import time
from pathlib import Path

import numpy as np
import pytest

from voxcpm_runtime.text.english.reading import read_aloud
from voxcpm_runtime.text.normalization import continued_transcript, said_text, spelled, spelled_transcript

READINGS = Path(__file__).with_name("data") / "english_readings.tsv"
"""What is written; what a voice of letters says, if it can; what a voice of words is given, if anything changes.

Kind "unread" needs the meaning of the sentence or the writer's country, which no library of TRIALS.md knows either.
"""
ALPHABET = set(string.ascii_lowercase + " ',.?!-")
HOSTILE = [
    "a", "A", "1", "a.", "1.", "1,", "1-", "1/", "1:", "a@", "@a", "#A", "$1", "-", "--", "(", '"', "'a", "a' ", "/a",
    "\\a", "a-", "A.", "A&", "I", "MC", "x^2", "1x", "1 ", "1 1/2 ", "a a ", "A B ", "e.g. ", "Dr. ", "$1-",
    "1–", "www.",
    "http://", "a.com", "~/a", "<a", "... ", "+1 1", "5 ft ", "1e9 ", "Jan ", "1990s", "'90s", "10:30 am ",
    "Henry VIII ", "art. 3 ", "ART. 3 ", "NO. 3 ", "no. 3 ", "Pp 3 ", "FIG. II ", "MR. A", "mr. a", "3 V ", "1am-",
    "JAN. A ", "1 000 ", "1-1-", "1.000.", "a - ", "x+", "Rev 1:1 ", "Mon-", "Jan-", "Aa, ", "Type I ", "1 h ",
    "1° ", "1' x ",
]  # fmt: skip


def readings():
    with READINGS.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def cases(vocabulary):
    """The parameters of a vocabulary: a kind and the reading of each of its texts."""
    kinds: dict[str, dict[str, str]] = {}
    for case in readings():
        if case[vocabulary] or vocabulary == "words":
            kinds.setdefault(case["kind"], {})[case["written"]] = case[vocabulary] or case["written"]
    return [pytest.param(kind, said, id=kind) for kind, said in kinds.items()]


def check(kind, vocabulary, expected, found):
    """Equal readings, but of kind "unread" none: what is read at last gets another kind."""
    if kind in {"unread", f"unread-{vocabulary}"}:
        assert [written for written in expected if found[written] == expected[written]] == []
    else:
        assert found == expected


@pytest.mark.parametrize(("kind", "said"), cases("letters"))
def test_letters_only_vocabulary_spells_out_everything(letters, kind, said):
    ended = {written: text if text[-1] in ".?!" else f"{text}." for written, text in said.items()}
    check(kind, "letters", ended, {written: spelled(written, letters) for written in said})


@pytest.mark.parametrize(("kind", "said"), cases("words"))
def test_word_vocabulary_spells_out_numbers_and_symbols(kind, said):
    as_written = {written: said_text(written, normalize=False, letters_only=False) for written in said}
    assert as_written == {written: " ".join(written.split()) for written in said}
    found = {written: said_text(written, normalize=True, letters_only=False) for written in said}
    check(kind, "words", said, found)


def test_a_joined_transcript_is_read_as_its_texts_were(letters):
    """Also where a text ended in the middle of a sentence, or has a name that is an abbreviation in small letters."""
    written = [case["written"] for case in readings() if case["letters"]]
    joined = "".join(continued_transcript(text, letters) for text in written)
    assert spelled_transcript(joined, letters) == "".join(f"{spelled(text, letters)} " for text in written)


@pytest.mark.parametrize("seed", range(6))
def test_ascii_text_is_spelled_with_letters_only(letters, seed):
    rng = np.random.default_rng(seed)
    written = [case["written"] for case in readings() if case["written"].isascii()]
    pieces = [*string.printable, *string.ascii_letters, *HOSTILE, *written]
    for _ in range(60):
        text = "".join(pieces[at] for at in rng.integers(len(pieces), size=rng.integers(1, 40)))
        if any(char.isalnum() for char in text):
            said = spelled(text, letters)
            assert set(said) <= ALPHABET, text
            assert any(char.isalpha() for char in said), text
            assert not letters.unknown_characters(said), text
            assert not any(map(str.isdigit, read_aloud(text, spelled=False))), text


@pytest.mark.parametrize("piece", [*HOSTILE, "lorem ipsum, dolor sit amet "])
def test_long_lines_take_linear_time(letters, piece):
    """Ten times the text may take 10 times as long; quadratic rules would take 100 times."""
    spelled("5 km", letters)
    taken = []
    for length in (400, 4_000):
        started = time.process_time()
        spelled(f"so {piece * (length // len(piece))}", letters)
        taken.append(time.process_time() - started)
    assert taken[1] < max(30 * taken[0], 0.5)
    assert taken[1] < 1
