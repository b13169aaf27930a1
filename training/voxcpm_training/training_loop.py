"""Shared by both trainings: schedule, averaged weights, gradients, CUDA graphs, checkpoints, log."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from voxcpm_training import processes

Metrics = dict[str, Tensor]
# Processes' clocks differ, and agreeing on one synchronises with the GPU.
_STEPS_BETWEEN_CLOCKS = 50


class Schedule:
    """Progress from 0 to 1 over `steps`, or over `minutes` of wall-clock time, whichever ends first.

    A time limit suits a machine that is available for a fixed time; a number of steps makes a run reproducible.
    """

    def __init__(self, steps: int, minutes: float | None, done_seconds: float = 0.0) -> None:
        self._steps, self._seconds = steps, None if minutes is None else 60 * minutes
        self._started = time.monotonic() - done_seconds
        self._shared = 0.0

    @property
    def seconds(self) -> float:
        """Seconds of training so far, including earlier runs."""
        return time.monotonic() - self._started

    def progress(self, step: int) -> float:
        """Progress after `step` steps, from 0 to 1, the same in all processes."""
        if step % _STEPS_BETWEEN_CLOCKS == 0 or self._seconds is None:
            by_clock = 0.0 if self._seconds is None else self.seconds / self._seconds
            self._shared = min(1.0, max(step / self._steps, by_clock))
            if self._seconds is not None:
                self._shared = processes.broadcast_value(self._shared)
        return self._shared


def cosine(progress: float, first: float, last: float) -> float:
    """Cosine schedule from `first` at progress 0 to `last` at progress 1."""
    return last + (first - last) * (1 + math.cos(math.pi * min(1.0, progress))) / 2


class AveragedWeights:
    """Exponential moving average of a module's parameters."""

    def __init__(self, module: nn.Module, decay: float) -> None:
        self._parameters = list(module.parameters())
        self.average = [p.detach().clone() for p in self._parameters]
        self._decay = decay

    @torch.no_grad()
    def update(self) -> None:
        """Update the average after a step."""
        torch._foreach_lerp_(self.average, [p.detach() for p in self._parameters], 1 - self._decay)

    def state_dict(self, module: nn.Module) -> dict[str, Tensor]:
        """The module's state with averaged parameters and current buffers."""
        state = {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}
        for (name, _), average in zip(module.named_parameters(), self.average, strict=True):
            state[name] = average.clone()
        return state


def adamw(
    parameters: Iterable[nn.Parameter], device: torch.device, betas: tuple[float, float]
) -> torch.optim.AdamW:
    """AdamW. On a GPU the learning rate is a tensor, so that a captured step can be replayed with another rate."""
    on_gpu = device.type == "cuda"
    rate: Any = torch.tensor(0.0, device=device) if on_gpu else 0.0
    return torch.optim.AdamW(
        parameters, lr=rate, betas=betas, weight_decay=0.01, fused=on_gpu, capturable=on_gpu, eps=1e-8
    )


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of all parameters."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


class Gradients:
    """All gradients in one flat tensor, so that a single operation clears, averages or clips them."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self._parameters = list(parameters)
        self.flat = torch.zeros(sum(p.numel() for p in self._parameters), device=self._parameters[0].device)
        parts = self.flat.split([p.numel() for p in self._parameters])
        for parameter, part in zip(self._parameters, parts, strict=True):
            parameter.grad = part.view_as(parameter)

    def add(self, loss: Tensor, *, retain_graph: bool = False) -> None:
        """Add the gradients of a loss with respect to these parameters only."""
        loss.backward(inputs=self._parameters, retain_graph=retain_graph)  # type: ignore[no-untyped-call]

    def clip(self, max_norm: float) -> Tensor:
        """Clip the gradient norm. Returns the norm before clipping."""
        norm = self.flat.norm()
        self.flat.mul_((max_norm / (norm + 1e-6)).clamp(max=1.0))
        return norm


class CapturedStep:
    """A function without arguments, captured once as a CUDA graph and then replayed.

    These models are small and a step has thousands of kernels: launching them takes longer than running them. The
    function reads static tensors that the caller fills before, and returns tensors that each replay overwrites.
    """

    _WARM_UP = 3

    def __init__(self, step: Callable[[], Metrics], device: torch.device, pool: Any = None) -> None:
        self._step = step
        self._graph: torch.cuda.CUDAGraph | None = None
        self._metrics: Metrics = {}
        if device.type != "cuda":
            return
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(self._WARM_UP):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # Other threads, such as NCCL's, may call CUDA meanwhile.
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            self._metrics = step()
        self._graph = graph

    def __call__(self) -> Metrics:
        """Run the function, or replay it on a GPU; returns its metrics."""
        if self._graph is None:
            return self._step()
        self._graph.replay()
        return self._metrics


class Log:
    """A log of JSON lines, in a file and on standard output."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, **record: float | str) -> None:
        """Append one line; a no-op except in the first process."""
        if processes.rank:
            return
        line = json.dumps({key: round(v, 5) if isinstance(v, float) else v for key, v in record.items()})
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        print(line, flush=True)  # noqa: T201


def save(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint atomically: an interrupted write leaves the previous file.

    A no-op except in the first process.
    """
    if processes.rank:
        return
    part = path.with_suffix(".part")
    torch.save(state, part)
    part.rename(path)
