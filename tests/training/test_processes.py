"""Two processes, on processors, share gradients, weights and latents as two GPUs do."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

PROGRAM = """
import torch
from torch import nn
from voxcpm_training import processes

device = processes.start()
torch.manual_seed(processes.rank)
module = nn.BatchNorm1d(2)
module.weight.data += processes.rank + 1
module.running_mean += processes.rank + 1
processes.synchronise(module)
assert module.weight.tolist() == [2, 2], module.weight
assert module.running_mean.tolist() == [1, 1], module.running_mean

gradient = torch.tensor([1.0, 2.0]) * (processes.rank + 1)
processes.average(gradient)
assert gradient.tolist() == [1.5, 3.0], gradient

assert processes.of_first(0.5 + processes.rank) == 0.5

# Five shards of 1 to 5 rows, dealt out alternately.
mine = [torch.full((n, 3), float(n)) for n in range(1, 6)][processes.rank :: processes.world]
everything = processes.gathered(mine, 3, device)
assert [part[:, 0].tolist() for part in everything] == [[n] * n for n in range(1, 6)], everything
processes.stop()
"""


def test_two_processes_share_gradients_weights_and_latents() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    both = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", PROGRAM],
            stderr=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
                "OMP_NUM_THREADS": "1",
            },
        )
        for rank in range(2)
    ]
    try:
        errors = [process.communicate(timeout=120)[1] for process in both]
    finally:
        for process in both:
            process.kill()

    assert [process.returncode for process in both] == [0, 0], "\n".join(errors)
