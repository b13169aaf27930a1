"""Gradients in one tensor train as ordinary ones do, and one process needs no others."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from voxcpm_training import processes
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


def test_gradients_reach_only_their_own_parameters() -> None:
    """Generator and discriminator share a loss's graph; each adds its own part."""
    generator, judge = nn.Linear(2, 2), nn.Linear(2, 1)
    own, other = Gradients(generator.parameters()), Gradients(judge.parameters())

    own.add(judge(generator(torch.ones(1, 2))).sum())

    assert own.flat.abs().sum() > 0
    assert other.flat.abs().sum() == 0


def test_one_process_needs_no_others() -> None:
    assert (processes.rank, processes.world) == (0, 1)
    processes.start()
    assert not torch.distributed.is_initialized()
    module, tensor = nn.Linear(2, 2), torch.tensor([1.0, 3.0])
    before = module.weight.detach().clone()
    processes.synchronise(module)
    processes.average(tensor)
    parts = [torch.zeros(2, 4), torch.ones(1, 4)]

    assert torch.equal(module.weight, before)
    assert tensor.tolist() == [1.0, 3.0]
    assert processes.of_first(0.25) == 0.25
    assert processes.gathered(parts, 4, torch.device("cpu")) is parts
    processes.stop()
