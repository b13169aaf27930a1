"""The corpus's texts are written as a reader says them, and held-out sentences are not among them."""

from __future__ import annotations

import numpy as np
import pytest

from voxcpm_training.corpus import exchanges, in_words, kept, spoken, utterances
from voxcpm_training.templates import templates
from voxcpm_training.text import is_speakable

KNOWN = frozenset(
    ("the", "old", "farmer", "fed", "his", "chickens", "before", "sunrise", "quick", "brown", "dog", "ran", "home")
) | {"it", "rained", "yes"}  # fmt: skip


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        ("0", "zero"),
        ("42", "forty-two"),
        ("105", "one hundred five"),
        ("1066", "one thousand sixty-six"),
        ("1100", "eleven hundred"),
        ("1905", "nineteen oh five"),
        ("1984", "nineteen eighty-four"),
        ("2000", "two thousand"),
        ("2007", "two thousand seven"),
        ("2010", "twenty ten"),
        ("2100", "two thousand one hundred"),
        ("1,984", "one thousand nine hundred eighty-four"),
        ("$1984", "one thousand nine hundred eighty-four dollars"),
        ("$12,500", "twelve thousand five hundred dollars"),
        ("1984.5", "one thousand nine hundred eighty-four point five"),
        ("3.05", "three point zero five"),
        ("1st", "first"),
        ("22nd", "twenty-second"),
        ("113th", "one hundred thirteenth"),
        ("1,000,000", "one million"),
    ],
)
def test_a_number_in_words(number: str, expected: str) -> None:
    assert in_words(number) == expected


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("The cat sat on the mat!", "The cat sat on the mat!"),
        ("``We won't go,'' she said; they stayed .", "We won't go, she said, they stayed."),
        ("In 1984 it rained", "In nineteen eighty-four it rained."),
        ("Dr. Smith paid $3.05.", "Doctor Smith paid three point zero five dollars."),
        ("He left (at 7 p.m.) -- alone", "He left, at seven pee em, alone."),
        ("The 3.5th part.", None),
        ("See page 12/3.", None),
        ("It is at example.org today.", None),
        ("", None),
    ],
)
def test_a_sentence_as_it_is_said(sentence: str, expected: str | None) -> None:
    assert spoken(sentence) == expected


def test_an_utterance_never_spans_a_sentence_that_cannot_be_said() -> None:
    document = ["It rained.", "The zebra ran home.", "The dog ran home.", "Yes."]

    found = list(utterances([document] * 50, np.random.default_rng(0), KNOWN))

    assert set(found) == {"It rained.", "The dog ran home.", "Yes.", "The dog ran home. Yes."}


def test_held_out_sentences_are_never_trained_on() -> None:
    held_out = ["the old farmer fed his chickens before sunrise."]
    candidates = [
        "The old farmer fed his chickens before sunrise.",
        "Brown farmer fed his chickens before dog.",
        "The quick brown dog ran home.",
        "The quick brown dog ran home.",
        "The quick zebra ran home.",
        "The QUICK brown dog ran home.",
    ]

    assert list(kept(candidates, held_out, KNOWN)) == ["The quick brown dog ran home."]


def short_sentences(count: int) -> list[str]:
    """Different sentences of 5 to 59 characters, of which one in ten is a question or an exclamation."""
    rng = np.random.default_rng(2)
    letters = list("abcdefghijklmnopqrstuvwxyz")
    marks = ["?" if i % 20 == 0 else "!" if i % 20 == 10 else "." for i in range(count)]
    sizes = rng.integers(4, 59, count)
    return [
        f"{''.join(rng.choice(letters, size)).capitalize()}{mark}"
        for size, mark in zip(sizes, marks, strict=True)
    ]


def test_exchanges_are_whole_sentences_half_of_them_lively() -> None:
    sentences = short_sentences(400)

    found = list(exchanges(sentences, 2000, np.random.default_rng(0)))

    assert len(found) == 2000
    assert [text for text in found if not is_speakable(text.lower())] == []
    # An utterance of several sentences has 40 to 290 characters.
    assert all(40 <= len(text) <= 290 for text in found)
    assert min(map(len, found)) < 60
    assert max(map(len, found)) > 230
    said = [sentence for text in found for sentence in text.split(" ")]
    assert set(said) == set(sentences)
    # One half is drawn from the lively ones, and a tenth of the other half.
    for mark in "?!":
        assert np.mean([sentence[-1] == mark for sentence in said]) == pytest.approx(0.275, abs=0.02)


def test_exchanges_are_the_same_for_the_same_seed() -> None:
    sentences = short_sentences(40)

    first, again, other = (list(exchanges(sentences, 20, np.random.default_rng(seed))) for seed in (1, 1, 2))

    assert first == again != other


def test_an_exchange_with_a_held_out_sentence_is_not_trained_on() -> None:
    held_out = ["the old farmer fed his chickens before sunrise."]
    sentences = ["The old farmer fed his chickens.", "It rained!", "The dog ran home.", "Yes?"]
    made = list(exchanges(sentences, 500, np.random.default_rng(0)))

    found = list(kept(made, held_out, KNOWN))

    assert sum("farmer" in text for text in made) > 100
    assert found
    assert [text for text in found if "farmer" in text] == []


def test_templates_are_speakable() -> None:
    found = list(templates(500, np.random.default_rng(0), in_words))

    assert len(set(found)) > 450
    assert [text for text in found if not is_speakable(text.lower())] == []
