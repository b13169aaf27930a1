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
# A distance this many times the lowest one so far is a collapse; from step to step it varies by a third.
_COLLAPSED = 2.5
# Gradients are clipped at this multiple of the mean norm of about this many steps.
_CLIP, _NORMS = 3.0, 100


class Schedule:
    """`steps` of training in parts of `minutes` of wall-clock time, for machines that are available for a fixed time.

    A cosine follows the steps alone, so a training in parts is the same as one in a single run.
    """

    def __init__(
        self, steps: int, minutes: float | None, done_seconds: float = 0.0, cool_down: float = 0.0
    ) -> None:
        self._steps, self._seconds = steps, math.inf if minutes is None else 60 * minutes
        self._done, self._started = done_seconds, time.monotonic()
        self._passed, self._cool_down = 0.0, cool_down

    @property
    def seconds(self) -> float:
        """Seconds of training so far, including earlier parts."""
        return self._done + time.monotonic() - self._started

    def ended(self, step: int) -> bool:
        """Whether training ends after `step` steps: the same answer in all processes."""
        if step >= self._steps:
            return True
        if step % _STEPS_BETWEEN_CLOCKS == 0 and self._seconds < math.inf:
            self._passed = processes.broadcast_value(time.monotonic() - self._started)
        return self._passed >= self._seconds

    def cooling(self, step: int) -> float:
        """Factor of a constant learning rate: 1, and over the last part (`cool_down`) down to 0.

        Warm-up, stable, decay, of MiniCPM (arXiv 2404.06395): each part of a training ends with weights to ship, and
        the next one continues from those before the decay. Its shape is 1 - sqrt (arXiv 2405.18392).
        """
        left = 1 - max(step / self._steps, self._passed / self._seconds)
        return 1 - math.sqrt(min(1.0, max(0.0, 1 - left / self._cool_down)))


class CollapseCheck:
    """Ends a training that has lost what it had learned, before it replaces its last good checkpoint."""

    def __init__(self) -> None:
        self._lowest = math.inf

    def __call__(self, step: int, distance: float) -> None:
        """Raise SystemExit in all processes if the first one's distance of spectrograms has collapsed."""
        distance = processes.broadcast_value(distance)
        self._lowest = min(self._lowest, distance)
        if distance > _COLLAPSED * self._lowest:
            raise SystemExit(
                f"training has collapsed by step {step}: the distance of spectrograms was {self._lowest:.2f} and is "
                f"{distance:.2f}. The last checkpoint is kept; continue from it with lower learning rates."
            )


def cosine(progress: float, first: float, last: float) -> float:
    """Cosine schedule from `first` at progress 0 to `last` at progress 1."""
    return last + (first - last) * (1 + math.cos(math.pi * min(1.0, progress))) / 2


class AveragedWeights:
    """Exponential moving average of a module's parameters and floating-point buffers."""

    def __init__(self, module: nn.Module, decay: float) -> None:
        self._module, self._decay = module, decay
        state = module.state_dict()
        self._names = [name for name, tensor in state.items() if tensor.is_floating_point()]
        self._parameters = [state[name] for name in self._names]
        self.average = [p.clone() for p in self._parameters]

    @torch.no_grad()
    def update(self) -> None:
        """Update the average after a step."""
        torch._foreach_lerp_(self.average, self._parameters, 1 - self._decay)

    def state_dict(self) -> dict[str, Tensor]:
        """A copy of the module's state with the averages."""
        state = self._module.state_dict() | dict(zip(self._names, self.average, strict=True))
        return {name: tensor.clone() for name, tensor in state.items()}

    def load(self, weights: dict[str, Tensor]) -> None:
        """Continue from a state of the module."""
        for name, average in zip(self._names, self.average, strict=True):
            average.copy_(weights[name])


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


def half_precision(device: torch.device) -> torch.autocast:
    """Arithmetic in bfloat16 on a GPU.

    No cache of bfloat16 weights: a captured graph would reuse the weights of the capture at every replay.
    """
    on_gpu = device.type == "cuda"
    return torch.autocast(device.type, torch.bfloat16, enabled=on_gpu, cache_enabled=False)


class Gradients:
    """All gradients in one flat tensor, so that a single operation clears, averages or clips them."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self._parameters = list(parameters)
        self.flat = torch.zeros(sum(p.numel() for p in self._parameters), device=self._parameters[0].device)
        parts = self.flat.split([p.numel() for p in self._parameters])
        for parameter, part in zip(self._parameters, parts, strict=True):
            parameter.grad = part.view_as(parameter)
        self._norm, self._norms = torch.zeros(2, device=self.flat.device).unbind()

    def add(self, loss: Tensor, *, retain_graph: bool = False) -> None:
        """Add the gradients of a loss with respect to these parameters only."""
        loss.backward(inputs=self._parameters, retain_graph=retain_graph)  # type: ignore[no-untyped-call]

    def clip(self, max_norm: float) -> Tensor:
        """Clip the gradient norm. Returns the norm before clipping."""
        norm = self.flat.norm()
        self.flat.mul_((max_norm / (norm + 1e-6)).clamp(max=1.0))
        return norm

    def clip_outliers(self) -> Tensor:
        """Clip the gradient norm at `_CLIP` times its running mean. Returns the norm before clipping.

        A fixed limit below the usual norm would let the layer with the largest gradient shrink every other's.
        """
        norm = self.flat.nan_to_num_(0.0, 0.0, 0.0).norm()
        self._norms += 1
        limit = torch.where(self._norms > _NORMS, _CLIP * self._norm, norm)
        self._norm.lerp_(torch.minimum(norm, limit), (1 / self._norms).clamp(min=1 / _NORMS))
        self.flat.mul_((limit / (norm + 1e-6)).clamp(max=1.0))
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


def factored_moments(optimizer: torch.optim.Optimizer) -> list[dict[str, Tensor]]:
    """Adam's second moments, each as means over its rows and columns (Adafactor, arXiv 1804.04235), and its steps.

    A hundredth of the size of the weights. The first moments are left out: with beta 0.8 five steps restore them.
    """
    found: list[dict[str, Tensor]] = []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state[parameter]
            if not state:  # not updated yet
                found.append({})
                continue
            matrix = state["exp_avg_sq"].flatten(1) if parameter.dim() > 1 else state["exp_avg_sq"][None]
            found.append({"rows": matrix.mean(1), "columns": matrix.mean(0), "step": state["step"].clone()})
    return found


def restore_moments(optimizer: torch.optim.Optimizer, moments: list[dict[str, Tensor]]) -> None:
    """Continue with the result of `factored_moments`."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for parameter, m in zip(parameters, moments, strict=True):
        if not m:
            continue
        second = m["rows"][:, None] * m["columns"] / m["rows"].mean().clamp(min=1e-30)
        optimizer.state[parameter] = {
            "step": m["step"].clone(), "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": second.reshape(parameter.shape).contiguous(),
        }  # fmt: skip


def weights_to_bytes(state: dict[str, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
    """Weights in 8 bits with a scale per output channel; sufficient for what goes on learning."""
    found = {}
    for name, tensor in state.items():
        flat = tensor.float().reshape(len(tensor), -1) if tensor.dim() else tensor.float().reshape(1, 1)
        scale = flat.abs().amax(1, keepdim=True).clamp(min=1e-12) / 127
        scale = scale.view(-1, *[1] * max(0, tensor.dim() - 1)) if tensor.dim() else scale.view(())
        found[name] = (tensor / scale).round().to(torch.int8), scale
    return found


def bytes_to_weights(state: dict[str, tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """The weights of `weights_to_bytes`."""
    return {name: values.float() * scale for name, (values, scale) in state.items()}


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
