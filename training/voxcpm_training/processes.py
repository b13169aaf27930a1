"""Distributed training with one process per GPU: `torchrun --nproc-per-node N -m …`; one process without torchrun."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import Tensor, nn

rank = int(os.environ.get("RANK", "0"))
world = int(os.environ.get("WORLD_SIZE", "1"))


def start() -> torch.device:
    """Initialise the process group; returns this process's device."""
    local = int(os.environ.get("LOCAL_RANK", "0"))
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", local) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    if world > 1:
        dist.init_process_group("nccl" if on_gpu else "gloo", device_id=device if on_gpu else None)
    return device


def stop() -> None:
    """Destroy the process group."""
    if world > 1:
        dist.destroy_process_group()


def synchronise(module: nn.Module) -> None:
    """Broadcast the first process's parameters and buffers."""
    if world > 1:
        for tensor in module.state_dict().values():
            dist.broadcast(tensor, 0)


def average(tensor: Tensor) -> None:
    """Average a tensor over all processes, in place."""
    if world > 1:
        dist.all_reduce(tensor)
        tensor.div_(world)


def broadcast_value(value: float) -> float:
    """The first process's value."""
    if world == 1:
        return value
    device = "cuda" if torch.cuda.is_available() else "cpu"
    shared = torch.tensor([value], dtype=torch.float64, device=device)
    dist.broadcast(shared, 0)
    return float(shared.item())
