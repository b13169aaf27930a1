"""Batches hold what the language model is trained on, once, and in the same shapes for all processes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from voxcpm_training.architecture import PATCH
from voxcpm_training.batches import Batch, Sampler
from voxcpm_training.speech import Utterances
from voxcpm_training.text import AUDIO_START, character_ids, encode

TEXTS = ("one bird sang.", "two birds flew away.", "it rained.", "they came home.")
# One byte cannot tell the first two apart.
SPEAKERS = (1, 257, 540)


def made(
    texts: list[str], patches: list[int], kept: list[bool], speakers: Sequence[int] = (0,)
) -> Utterances:
    rng = np.random.default_rng(0)
    ids = character_ids()
    encoded = [encode(text, ids) for text in texts]
    frames = np.array(patches, np.int64) * PATCH
    return Utterances(
        text=np.concatenate(encoded), characters=np.array([len(t) for t in encoded]),
        phones=rng.integers(0, 5, frames.sum()).astype(np.uint8), frames=frames,
        speaker=rng.choice(np.array(speakers, np.uint16), len(texts)), kept=np.array(kept),
    )  # fmt: skip


def random_utterances(count: int) -> Utterances:
    rng = np.random.default_rng(1)
    patches = rng.integers(2, 40, count).tolist()
    texts = [f"{'la ' * (size // 2)}la." for size in patches]
    return made(texts, patches, (rng.random(count) < 0.9).tolist(), SPEAKERS)


def utterances_of(batch: Batch, utterances: Utterances) -> list[int]:
    """Numbers of the utterances whose last patch is in the batch; each of a pair counts."""
    ends = np.cumsum(utterances.frames // PATCH) - 1
    return np.nonzero(np.isin(ends, batch.patches))[0].tolist()


def test_batches_hold_text_then_audio_then_the_stop() -> None:
    """Decode a packed batch by hand: every patch follows its text, and the last one stops."""
    patches = [2, 3, 1, 4]
    utterances = made(list(TEXTS), patches, [True] * 4)
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


@pytest.mark.parametrize("paired", [0.0, 0.4])
def test_two_processes_get_the_same_shapes_and_never_the_same_utterance(paired: float) -> None:
    utterances = random_utterances(800)
    first, second = (
        list(Sampler(utterances, 1024, paired, seed=0, rank=rank, world=2).epoch()) for rank in range(2)
    )

    assert [batch.shape for batch in first] == [batch.shape for batch in second]
    assert len({batch.shape for batch in first}) > 2
    used = [number for batch in (*first, *second) for number in utterances_of(batch, utterances)]
    assert len(used) == len(set(used))
    assert len(used) > 0.7 * utterances.kept.sum()


def test_the_utterances_of_a_pair_have_one_speaker() -> None:
    utterances = random_utterances(800)
    patches = utterances.frames // PATCH
    utterance_of = np.repeat(np.arange(800), patches)
    starts = np.cumsum(patches) - patches
    pairs = [
        (utterance_of[before], utterance_of[patch])
        for batch in Sampler(utterances, 1024, 0.4, 0).epoch()
        for patch, before in zip(batch.patches, batch.before, strict=True)
        if before != len(utterance_of) and patch in starts
    ]

    assert len(pairs) > 80
    assert {int(utterances.speaker[a]) for a, _ in pairs} == set(SPEAKERS)
    assert all(utterances.speaker[a] == utterances.speaker[b] for a, b in pairs)


def test_utterances_that_the_recogniser_dropped_are_not_used() -> None:
    utterances = random_utterances(800)

    used = {n for b in Sampler(utterances, 1024, 0.4, 0).epoch() for n in utterances_of(b, utterances)}

    assert used
    assert utterances.kept[sorted(used)].all()


def test_one_process_and_two_cover_the_same_plan() -> None:
    utterances = random_utterances(800)
    alone = {n for b in Sampler(utterances, 1024, 0.4, 0).epoch() for n in utterances_of(b, utterances)}

    shared = {
        n
        for rank in range(2)
        for b in Sampler(utterances, 1024, 0.4, 0, rank, 2).epoch()
        for n in utterances_of(b, utterances)
    }

    assert shared <= alone
