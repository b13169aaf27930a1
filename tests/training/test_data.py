"""The synthesis writes whole shards, until its time is over, and its speech keeps its speaker and its text."""

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
from voxcpm_training.architecture import SAMPLE_RATE
from voxcpm_training.speech import Utterances, finished_shards
from voxcpm_training.text import character_ids
from voxcpm_training.voices import SPEAKERS, Spoken, Utterance


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


def texts_of(utterances: Utterances) -> list[str]:
    letters = {index: letter for letter, index in character_ids().items()}
    said = "".join(letters[index] for index in utterances.text.tolist())
    ends = np.cumsum(utterances.characters).tolist()
    return [said[start:end].replace("▁", " ")[1:] for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def test_speakers_beyond_255_are_written_and_read_as_they_were_asked_for(
    voices: Voices, tmp_path: Path
) -> None:
    synthesise(tmp_path, 0, ["It rained."] * 80)

    expected = [SPEAKERS.index(u.speaker) for u in voices.asked[0]]
    assert sum(number > 255 for number in expected) > 10
    with np.load(tmp_path / "shard-00000.npz") as shard:
        assert shard["speaker"].dtype == np.uint16
        assert shard["speaker"].tolist() == expected
    assert read(tmp_path / "shard-00000.npz").speaker.tolist() == expected


def test_what_cannot_be_used_takes_its_text_and_speaker_with_it(voices: Voices, tmp_path: Path) -> None:
    seconds = synthesise(tmp_path, 5, ["It rained.", "?", "too long to keep.", "Yes."])

    (asked,) = voices.asked
    assert [u.phonemes for u in asked] == ["Itrained", "toolongtokeep", "Yes"]
    found = read(tmp_path / "shard-00005.npz")
    assert texts_of(found) == ["it rained.", "yes."]
    assert found.speaker.tolist() == [SPEAKERS.index(asked[i].speaker) for i in (0, 2)]
    assert seconds == pytest.approx(found.frames.sum() * 960 / 24_000)


def test_a_text_without_phonemes_does_not_change_the_others_speakers(voices: Voices, tmp_path: Path) -> None:
    (tmp_path / "all").mkdir()
    (tmp_path / "fewer").mkdir()
    synthesise(tmp_path / "all", 2, ["It rained.", "Yes.", "They came home."])
    synthesise(tmp_path / "fewer", 2, ["?", "Yes.", "They came home."])

    everything, fewer = voices.asked
    assert fewer == everything[1:]


def test_nothing_is_made_after_the_time_or_twice(voices: Voices, tmp_path: Path) -> None:
    assert synthesise(tmp_path, 0, ["It rained."], until=999.0) == 0
    assert list(tmp_path.iterdir()) == []
    assert voices.asked == []

    assert synthesise(tmp_path, 0, ["It rained."], until=1001.0) > 0
    written = (tmp_path / "shard-00000.npz").read_bytes()
    assert synthesise(tmp_path, 0, ["They came home."]) == 0
    assert (tmp_path / "shard-00000.npz").read_bytes() == written


@pytest.mark.usefixtures("voices")
def test_a_shard_appears_only_when_it_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut_short(path: Path, **_columns: np.ndarray) -> None:
        path.write_bytes(b"PK")
        raise OSError("No space left on device")

    with monkeypatch.context() as full:
        full.setattr(np, "savez", cut_short)
        with pytest.raises(OSError, match="No space"):
            synthesise(tmp_path, 0, ["It rained."])
    assert [path.name for path in tmp_path.iterdir()] == ["shard-00000.part.npz"]
    assert finished_shards(tmp_path) == []

    assert synthesise(tmp_path, 0, ["It rained."]) > 0
    assert [path.name for path in tmp_path.iterdir()] == ["shard-00000.npz"]


@pytest.mark.parametrize(("minutes", "shards"), [(["--minutes", "1"], 3), ([], 6)])
def test_a_deadline_ends_the_synthesis_with_whole_shards(
    voices: Voices, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    minutes: list[str], shards: int,
) -> None:  # fmt: skip
    """A shard takes 25 s, so that in a minute three are begun, and the third ends after it."""
    voices.takes = 25.0
    corpus = tmp_path / "corpus.txt.gz"
    corpus.write_bytes(gzip.compress(b"It rained.\n" * 24))
    given = [corpus, "-o", tmp_path / "data", "--kokoro", tmp_path, "--shard-size", 4, "--processes", 1]
    monkeypatch.setattr(sys, "argv", ["data", *map(str, given), *minutes])
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: SimpleNamespace(Pool=ThreadPool))

    data.main()

    names = sorted(path.name for path in (tmp_path / "data").iterdir())
    assert names == [f"shard-{number:05d}.npz" for number in range(shards)]
    assert [len(read(tmp_path / "data" / name).frames) for name in names] == [4] * shards
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last["seconds"] == 25 * shards
