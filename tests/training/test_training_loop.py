"""Gradients of the training loop, and the filter by recognition errors."""

import copy
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from voxcpm_training.recogniser_filter import Filter, watch
from voxcpm_training.speech import Utterances
from voxcpm_training.text import character_ids, encode
from voxcpm_training.training_loop import Gradients


@pytest.mark.parametrize("longest", [0.05, 1000.0])
def test_gradients_in_one_tensor_give_the_same_update_as_clip_grad_norm(longest: float) -> None:
    torch.manual_seed(0)
    ordinary = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))
    flat = copy.deepcopy(ordinary)
    gradients = Gradients(flat.parameters())
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (ordinary, flat)]
    for _ in range(3):
        x, y = torch.randn(16, 5), torch.randn(16, 3)
        optimizers[0].zero_grad()
        nn.functional.mse_loss(ordinary(x), y).backward()
        norm = nn.utils.clip_grad_norm_(ordinary.parameters(), longest)
        optimizers[0].step()

        gradients.flat.zero_()
        gradients.add(nn.functional.mse_loss(flat(x), y))
        torch.testing.assert_close(gradients.clip(longest), norm)
        optimizers[1].step()
        for a, b in zip(ordinary.parameters(), flat.parameters(), strict=True):
            torch.testing.assert_close(a, b)


SAID = ("it rained all day.", "the dog ran home.", "two birds sang.")
HEARD = ("It rained all day.", "The god went Rome.", "Two birds sang.")


def write_shard(path: Path) -> None:
    ids = character_ids()
    texts = [encode(text, ids) for text in SAID]
    # The fake recogniser identifies an utterance by its length.
    samples = np.array([3840 * (i + 1) for i in range(len(SAID))])
    np.savez(
        path,
        audio=np.zeros(samples.sum(), np.int16), samples=samples, phones=np.zeros(samples.sum() // 960, np.uint8),
        text=np.concatenate(texts), characters=np.array([len(t) for t in texts]), speaker=np.zeros(3, np.uint16),
    )  # fmt: skip


def heard(audio: list[np.ndarray]) -> list[str]:
    return [HEARD[len(signal) // 3840 - 1] for signal in audio]


def test_misrecognised_utterances_are_dropped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shard = tmp_path / "shard-00007.npz"
    write_shard(shard)

    assert watch(tmp_path, Filter(heard, maximum=0.25, batch=2).judge, None) == 0

    assert np.load(tmp_path / "shard-00007.keep.npy").tolist() == [True, False, True]
    assert Utterances.of_shards([shard]).kept.tolist() == [True, False, True]
    line = json.loads(capsys.readouterr().out)
    assert (line["shard"], line["utterances"], line["kept"]) == ("shard-00007", 3, 2)
