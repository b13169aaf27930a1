"""The filter keeps what the recogniser understood, and goes on when a shard is broken."""

from __future__ import annotations

import itertools
import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from voxcpm_training.recogniser import resampled, resampling_kernel
from voxcpm_training.recogniser_filter import Filter, edit_distance, watch
from voxcpm_training.speech import Utterances
from voxcpm_training.text import character_ids, encode
from voxcpm_training.whisper_weights import compact, expanded

SAID = ("it rained all day.", "the dog ran home.", "two birds sang.")
HEARD = ("It rained all day.", "The god went Rome.", "Two birds sang.")


def write_shard(path: Path) -> None:
    ids = character_ids()
    texts = [encode(text, ids) for text in SAID]
    # The length of an utterance tells the recogniser of these tests which one it hears.
    samples = np.array([3840 * (i + 1) for i in range(len(SAID))])
    np.savez(
        path,
        audio=np.zeros(samples.sum(), np.int16), samples=samples, phones=np.zeros(samples.sum() // 960, np.uint8),
        text=np.concatenate(texts), characters=np.array([len(t) for t in texts]), speaker=np.zeros(3, np.uint16),
    )  # fmt: skip


def heard(audio: list[np.ndarray]) -> list[str]:
    return [HEARD[len(signal) // 3840 - 1] for signal in audio]


@pytest.mark.parametrize(
    ("one", "other", "distance"),
    [("", "", 0), ("abc", "", 3), ("kitten", "sitting", 3), ("saturday", "sunday", 3), ("same", "same", 0)],
)
def test_edit_distance(one: str, other: str, distance: int) -> None:
    assert edit_distance(one, other) == edit_distance(other, one) == distance
    assert edit_distance(list(one), list(other)) == distance


def test_edit_distance_is_that_of_the_recursion() -> None:
    @cache
    def expected(one: str, other: str) -> int:
        if not one or not other:
            return len(one) + len(other)
        kept = expected(one[1:], other[1:]) + (one[0] != other[0])
        return min(kept, expected(one[1:], other) + 1, expected(one, other[1:]) + 1)

    texts = ["".join(letters) for size in range(5) for letters in itertools.product("ab", repeat=size)]
    assert all(edit_distance(a, b) == expected(a, b) for a in texts for b in texts)


def test_what_was_misheard_is_not_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shard = tmp_path / "shard-00007.npz"
    write_shard(shard)

    assert watch(tmp_path, Filter(heard, maximum=0.25, batch=2).judge, None) == 0

    assert np.load(tmp_path / "shard-00007.keep.npy").tolist() == [True, False, True]
    assert Utterances.of_shards([shard]).kept.tolist() == [True, False, True]
    line = json.loads(capsys.readouterr().out)
    assert (line["shard"], line["utterances"], line["kept"]) == ("shard-00007", 3, 2)


def test_a_shard_is_judged_once_and_a_broken_one_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_shard(tmp_path / "shard-00000.npz")
    (tmp_path / "shard-00000.keep.npy").touch()
    (tmp_path / "shard-00001.npz").write_bytes(b"PK\x03\x04 cut short")
    (tmp_path / "done").touch()

    assert watch(tmp_path, Filter(heard, maximum=0.25, batch=2).judge, None) == 1

    assert "shard-00001" in capsys.readouterr().out
    assert not (tmp_path / "shard-00001.keep.npy").exists()


def test_speech_without_a_judgement_is_kept(tmp_path: Path) -> None:
    write_shard(tmp_path / "shard-00000.npz")

    assert Utterances.of_shards([tmp_path / "shard-00000.npz"]).kept.all()


def test_resampling_keeps_a_tone() -> None:
    at = torch.arange(24_000, dtype=torch.float64)
    tone = torch.sin(2 * torch.pi * 1000 * at / 24_000).float()[None]
    wanted = torch.sin(2 * torch.pi * 1000 * torch.arange(16_000, dtype=torch.float64) / 16_000).float()

    found = resampled(tone, resampling_kernel())[0]

    assert len(found) == 16_000
    torch.testing.assert_close(found[100:-100], wanted[100:-100], atol=2e-3, rtol=0)


def test_compact_weights_come_back_within_half_a_step() -> None:
    rng = np.random.default_rng(0)
    state = {"a.weight": rng.normal(size=(4, 8)), "positions": rng.normal(size=(3, 2)), "a.bias": np.ones(4)}

    back = expanded(compact(state))

    assert back.keys() == state.keys()
    step = np.abs(state["a.weight"]).max(axis=1, keepdims=True) / 127
    assert (np.abs(back["a.weight"] - state["a.weight"]) <= 0.51 * step).all()
    np.testing.assert_allclose(back["positions"], state["positions"], rtol=1e-3)
