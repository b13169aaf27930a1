"""From texts to batches: what is read, what is synthesised, and what the language model is trained on."""

from __future__ import annotations

import gzip
import json
import multiprocessing
import sys
from collections.abc import Sequence
from multiprocessing.pool import ThreadPool
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from voxcpm_training import data
from voxcpm_training.architecture import PATCH, SAMPLE_RATE
from voxcpm_training.batches import Batch, Sampler
from voxcpm_training.corpus import kept, spoken
from voxcpm_training.speech import Utterances
from voxcpm_training.text import AUDIO_START, character_ids, encode
from voxcpm_training.voices import Spoken, Utterance

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
def test_a_sentence_as_it_is_said(sentence: str, expected: str | None) -> None:
    assert spoken(sentence) == expected


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


TEXTS = ("one bird sang.", "two birds flew away.", "it rained.", "they came home.")
# One byte cannot tell the first two apart.
NUMBERS = (1, 257, 540)


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
    return made(texts, patches, (rng.random(count) < 0.9).tolist(), NUMBERS)


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


def test_two_processes_get_the_same_shapes_and_never_the_same_utterance() -> None:
    utterances = random_utterances(800)
    first, second = (
        list(Sampler(utterances, 1024, 0.4, seed=0, rank=rank, world=2).epoch()) for rank in range(2)
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
    assert {int(utterances.speaker[a]) for a, _ in pairs} == set(NUMBERS)
    assert all(utterances.speaker[a] == utterances.speaker[b] for a, b in pairs)


class Voices:
    """Stand-in for Kokoro: a tone of 0.2 s, or of 30 s for what begins with "too long". It takes a clock's time."""

    def __init__(self) -> None:
        self.now, self.takes = 1000.0, 0.0
        self.asked: list[list[Utterance]] = []

    def speak(self, utterances: Sequence[Utterance], _seed: int) -> list[Spoken]:
        self.asked.append(list(utterances))
        self.now += self.takes
        return [self._tone(u.phonemes) for u in utterances]

    def _tone(self, phonemes: str) -> Spoken:
        seconds = 30.0 if phonemes.startswith("toolong") else 0.2
        audio = np.sin(np.arange(round(seconds * SAMPLE_RATE)) * 0.1).astype(np.float32)
        ends = np.linspace(0, seconds, len(phonemes) + 2, dtype=np.float32)
        return Spoken(audio, [0, *[1] * len(phonemes), 0], ends)


@pytest.fixture
def voices(monkeypatch: pytest.MonkeyPatch) -> Voices:
    """Voices in place of Kokoro, letters in place of hibari's phonemes, and the voices' own clock."""
    voices = Voices()
    monkeypatch.setattr(data, "_kokoro", lambda folder, device: voices)
    monkeypatch.setattr(data, "phonemes", lambda text: "".join(filter(str.isalpha, text)))
    clock = SimpleNamespace(time=lambda: voices.now, monotonic=lambda: voices.now)
    monkeypatch.setattr(data, "time", clock)
    return voices


def synthesise(folder: Path, number: int, texts: list[str], until: float = np.inf) -> float:
    return data.synthesise(
        (number, texts), folder=folder, seed=3, kokoro=Path("kokoro"), devices=["cpu"], until=until
    )


def read(path: Path) -> Utterances:
    return Utterances.of_shards([path])


def test_a_deadline_ends_the_synthesis_with_whole_shards(
    voices: Voices, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A shard takes 25 s, so that in a minute three are begun, and the third ends after it."""
    voices.takes = 25.0
    corpus = tmp_path / "corpus.txt.gz"
    corpus.write_bytes(gzip.compress(b"It rained.\n" * 24))
    given = [corpus, "-o", tmp_path / "data", "--kokoro", tmp_path, "--shard-size", 4, "--processes", 1]
    monkeypatch.setattr(sys, "argv", ["data", *map(str, given), "--minutes", "1"])
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: SimpleNamespace(Pool=ThreadPool))

    data.main()

    names = sorted(path.name for path in (tmp_path / "data").iterdir())
    assert names == [f"shard-{number:05d}.npz" for number in range(3)]
    assert [len(read(tmp_path / "data" / name).frames) for name in names] == [4] * 3
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last["seconds"] == 75
