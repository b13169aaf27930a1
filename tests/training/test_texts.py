import numpy as np
import pytest

from voxcpm_training.architecture import PATCH
from voxcpm_training.batches import Sampler
from voxcpm_training.corpus import filter_texts, spell_out
from voxcpm_training.speech import Utterances
from voxcpm_training.text import AUDIO_START, character_ids, encode

KNOWN = frozenset(
    ("the", "old", "farmer", "fed", "his", "chickens", "before", "sunrise", "quick", "brown", "dog", "ran", "home")
) | {"it", "rained", "yes"}  # fmt: skip


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("``We won't go,'' she said; they stayed .", "We won't go, she said, they stayed."),
        ("In 1984 it rained", "In nineteen eighty-four it rained."),
        ("Dr. Smith paid $3.05.", "Doctor Smith paid three point zero five dollars."),
        ("He left (at 7 p.m.) -- alone", "He left, at seven pee em, alone."),
        ("The 3.5th part.", None),
        ("It is at example.org today.", None),
    ],
)
def test_sentence_is_spelled_out(sentence, expected):
    assert spell_out(sentence) == expected


def test_held_out_sentences_are_excluded_from_training():
    held_out = ["the old farmer fed his chickens before sunrise."]
    candidates = [
        "The old farmer fed his chickens before sunrise.",
        "Brown farmer fed his chickens before dog.",
        "The quick brown dog ran home.",
        "The quick brown dog ran home.",
        "The quick zebra ran home.",
        "The QUICK brown dog ran home.",
    ]
    assert list(filter_texts(candidates, held_out, KNOWN)) == ["The quick brown dog ran home."]


TEXTS = ("one bird sang.", "two birds flew away.", "it rained.", "they came home.")
# One byte cannot distinguish the first two.
NUMBERS = (1, 257, 540)


def made(texts, patches, speakers=(0,)):
    rng = np.random.default_rng(0)
    ids = character_ids()
    encoded = [encode(text, ids) for text in texts]
    frames = np.array(patches, np.int64) * PATCH
    return Utterances(
        text=np.concatenate(encoded), characters=np.array([len(t) for t in encoded]),
        phones=rng.integers(0, 5, frames.sum()).astype(np.uint8), frames=frames,
        speaker=rng.choice(np.array(speakers, np.uint16), len(texts)),
    )  # fmt: skip


def random_utterances(count):
    rng = np.random.default_rng(1)
    patches = rng.integers(2, 40, count).tolist()
    texts = [f"{'la ' * (size // 2)}la." for size in patches]
    return made(texts, patches, NUMBERS)


def utterances_of(batch, utterances):
    """Numbers of the utterances whose last patch is in the batch; each of a pair counts."""
    ends = np.cumsum(utterances.frames // PATCH) - 1
    return np.nonzero(np.isin(ends, batch.patches))[0].tolist()


def test_batches_contain_text_audio_and_stop():
    """Decode a packed batch by hand: every patch follows its text, and the last one stops."""
    patches = [2, 3, 1, 4]
    utterances = made(list(TEXTS), patches)
    starts, nothing = np.concatenate(([0], np.cumsum(patches))), sum(patches)
    seen: list[int] = []
    for batch in Sampler(utterances, 32, 0.0, 0).epoch():
        flat = batch.tokens.reshape(-1)
        real = batch.patches != nothing
        seen += batch.patches[real].tolist()
        for place, patch, before, last in zip(
            batch.places[real], batch.patches[real], batch.before[real], batch.last[real], strict=True
        ):
            assert last == (patch + 1 in starts[1:])
            if patch in starts:
                assert flat[place - 1] == AUDIO_START
                assert before == nothing
            else:
                assert before == patch - 1
    assert sorted(seen) == list(range(nothing))


def test_processes_get_equal_shapes_and_distinct_utterances():
    utterances = random_utterances(800)
    first, second = (
        list(Sampler(utterances, 1024, 0.4, seed=0, rank=rank, world=2).epoch()) for rank in range(2)
    )
    assert [batch.shape for batch in first] == [batch.shape for batch in second]
    assert len({batch.shape for batch in first}) > 2
    used = [number for batch in (*first, *second) for number in utterances_of(batch, utterances)]
    assert len(used) == len(set(used))
    assert len(used) > 0.7 * 800
