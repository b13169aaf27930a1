"""Train the language models, local encoder and DiT: `python -m voxcpm_training.language_model latents -o lm`.

The losses are upstream's (`VoxCPMModel.forward`: flow matching, and cross entropy of the stop head) and two auxiliary
ones that teach the base LM its position in the text: predicting the phones of the next patch from its hidden state, and
the patch itself from the DiT's condition. The auxiliary heads are dropped at export. Each input patch gets noise of a
random level, so that the model tolerates its own errors during generation.
"""

from __future__ import annotations

import argparse
import queue
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from voxcpm_training import processes
from voxcpm_training.architecture import CONFIG, LATENT, PATCH
from voxcpm_training.batches import Batch, Sampler, Shape
from voxcpm_training.earlier_weights import language_model_weights
from voxcpm_training.language_model_modules import VoxCPM
from voxcpm_training.latents import load_latents
from voxcpm_training.speech import Utterances, finished_shards
from voxcpm_training.training_loop import (
    AveragedWeights,
    CapturedStep,
    Gradients,
    Log,
    Metrics,
    Schedule,
    adamw,
    bytes_to_weights,
    factored_moments,
    half_precision,
    restore_moments,
    save,
    set_rate,
    weights_to_bytes,
)  # fmt: skip
from voxcpm_training.voices import PHONE_CLASSES

CHECKPOINT = "language_model.pt"
_PHONES, _REGRESSION, _STOP = 0.2, 0.3, 0.5
# Maximum standard deviations of the noise on input patches.
_ENCODER_NOISE, _CONDITION_NOISE = 0.3, 0.3


class Heads(nn.Module):
    """The auxiliary heads, for training only."""

    def __init__(self, hidden: int, dit_hidden: int) -> None:
        super().__init__()
        self.phones = nn.Linear(hidden, PATCH * PHONE_CLASSES)
        self.regression = nn.Linear(dit_hidden, PATCH * LATENT)


class StaticBatch:
    """A batch's tensors on the device, at fixed addresses."""

    def __init__(self, shape: Shape, device: torch.device) -> None:
        self.shape = shape
        self.tokens = torch.zeros(shape.rows, shape.length, dtype=torch.int64, device=device)
        self.places, self.patches, self.before, self.last = (
            torch.zeros(shape.patches, dtype=torch.int64, device=device) for _ in range(4)
        )

    def fill(self, batch: Batch) -> None:
        """Copy a batch of the same shape to the device."""
        for name in ("tokens", "places", "patches", "before", "last"):
            getattr(self, name).copy_(torch.from_numpy(getattr(batch, name)), non_blocking=True)


class LanguageModelTraining:
    """Model, auxiliary heads, optimizer, training data, and the training step."""

    def __init__(self, options: argparse.Namespace, device: torch.device) -> None:
        self.options, self.device = options, device
        paths = finished_shards(options.data)
        utterances = Utterances.of_shards(paths)
        latents = load_latents(paths, device)
        self.sampler = Sampler(
            utterances, options.tokens, options.paired, options.seed, processes.rank, processes.world
        )
        # A final patch of zeros precedes each utterance's first patch, and is the padding.
        self.latents = F.pad(latents.view(-1, PATCH, LATENT), (0, 0, 0, 0, 0, 1))
        phones = torch.from_numpy(utterances.phones).to(device).long()
        self.phones = F.pad(phones.view(-1, PATCH), (0, 0, 0, 1))
        self.model = VoxCPM(CONFIG).to(device)
        self.heads = Heads(CONFIG["lm_config"]["hidden_size"], CONFIG["dit_config"]["hidden_dim"]).to(device)
        processes.synchronise(self.model)
        processes.synchronise(self.heads)
        parameters = [*self.model.parameters(), *self.heads.parameters()]
        self.optimizer = adamw(parameters, device, (0.9, 0.98))
        self.gradients = Gradients(parameters)
        self.averaged = AveragedWeights(self.model, options.average)
        self.step, self.seconds = 0, 0.0

    def load(self, path: Path) -> None:
        """Resume from language_model.pt."""
        state = torch.load(path, map_location=self.device, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.heads.load_state_dict(state["heads"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.averaged.load(state["averaged"])
        self.step, self.seconds = state["step"], state["seconds"]

    def start_from(self, path: Path) -> None:
        """Continue from another part's start.pt, or initialise from a checkpoint's folder, which has weights only."""
        if path.is_dir():
            weights = language_model_weights(path, self.device)
        else:
            state = torch.load(path, map_location=self.device, weights_only=True)
            weights = bytes_to_weights(state["averaged"])
            self.heads.load_state_dict(bytes_to_weights(state["heads"]))
            restore_moments(self.optimizer, state["optimizer"])
            self.step = state["step"]
        self.model.load_state_dict(weights)
        self.averaged.load(weights)

    def save(self, schedule: Schedule, *, cooled: bool = False) -> None:
        """Write language_model.pt to resume from, averaged.pt in fp16 for export, and start.pt for the next part.

        The next part starts from the weights before this one's cool-down (`cooled`), at the same learning rate.
        """
        averaged = self.averaged.state_dict()
        everything: dict[str, Any] = {
            "model": self.model.state_dict(), "heads": self.heads.state_dict(), "averaged": averaged,
            "optimizer": self.optimizer.state_dict(), "step": self.step, "seconds": schedule.seconds,
        }  # fmt: skip
        save(self.options.output / CHECKPOINT, everything)
        halves = {name: tensor.half() for name, tensor in averaged.items()}
        save(self.options.output / "averaged.pt", halves)
        if cooled:
            return
        # All that --initial needs, at a fifteenth of the size.
        start = {
            "averaged": weights_to_bytes(averaged), "heads": weights_to_bytes(self.heads.state_dict()),
            "optimizer": factored_moments(self.optimizer), "step": self.step,
        }  # fmt: skip
        save(self.options.output / "start.pt", start)

    def gradients_on(self, batch: StaticBatch) -> Metrics:
        """Compute gradients of all losses on a batch; returns the losses."""
        self.gradients.flat.zero_()
        with half_precision(self.device):
            metrics = self.losses(batch)
        loss = metrics["flow"] + _STOP * metrics["stop"]
        self.gradients.add(loss + _PHONES * metrics["phones"] + _REGRESSION * metrics["regression"])
        return {name: value.detach() for name, value in metrics.items()}

    def update(self) -> Metrics:
        """Update the weights; returns the gradient norm."""
        norm = self.gradients.clip(1.0)
        self.optimizer.step()
        self.averaged.update()
        return {"norm": norm}

    def losses(self, batch: StaticBatch) -> Metrics:
        """The four unweighted losses by name, each a mean over the patches of the batch."""
        model, nothing = self.model, self.latents.size(0) - 1
        target, condition = self.latents[batch.patches], self.latents[batch.before]
        real = (batch.patches != nothing).float()
        count = real.sum().clamp(min=1)
        embedded = model.enc_to_lm_proj(model.feat_encoder(_noisy(target, _ENCODER_NOISE)))
        text = model.base_lm.embed_tokens(batch.tokens).to(embedded.dtype)
        # Padding goes to one extra position.
        flat = F.pad(text.flatten(0, 1), (0, 0, 0, 1)).index_copy(0, batch.places, embedded)
        hidden = model.base_lm(self._rows(flat, batch), causal=True).flatten(0, 1)
        hidden = F.pad(hidden, (0, 0, 0, 1))
        quantized = hidden.index_copy(0, batch.places, model.fsq_layer(hidden[batch.places]).to(hidden.dtype))
        residual = quantized.index_add(0, batch.places, embedded.to(quantized.dtype))
        residual = F.pad(
            model.residual_lm(self._rows(residual, batch), causal=True).flatten(0, 1), (0, 0, 0, 1)
        )
        # Each audio position is predicted from the previous one; for padding it does not matter.
        source = batch.places - 1
        lm_hidden = quantized[source]
        mu = model.lm_to_dit_proj(lm_hidden) + model.res_to_dit_proj(residual[source])
        stop = model.stop_head(F.silu(model.stop_proj(lm_hidden))).float()
        phones = self.heads.phones(lm_hidden).float().view(-1, PHONE_CLASSES)
        phone_targets = self.phones[batch.patches].flatten()
        regressed = self.heads.regression(mu).float().view_as(target)
        return {
            "flow": self._flow(target, mu, condition, real, count),
            "stop": (F.cross_entropy(stop, batch.last, reduction="none") * real).sum() / count,
            "phones": (
                F.cross_entropy(phones, phone_targets, reduction="none").view(-1, PATCH).mean(1) * real
            ).sum()
            / count,
            "regression": ((regressed - target).square().mean((1, 2)) * real).sum() / count,
        }

    @staticmethod
    def _rows(flat: Tensor, batch: StaticBatch) -> Tensor:
        return flat[:-1].view(batch.shape.rows, batch.shape.length, -1)

    def _flow(self, target: Tensor, mu: Tensor, condition: Tensor, real: Tensor, count: Tensor) -> Tensor:
        """Upstream's `UnifiedCFM.compute_loss`: the velocity noise - target at t = sigmoid(N(-0.4, 1))."""
        draws = self.options.draws
        target, mu, condition, real = (_repeat(x, draws) for x in (target, mu, condition, real))
        kept = (
            torch.rand(len(target), 1, device=self.device)
            > CONFIG["dit_config"]["cfm_config"]["training_cfg_rate"]
        )
        t = torch.sigmoid(torch.randn(len(target), device=self.device) - 0.4)
        noise = torch.randn_like(target)
        at = t[:, None, None]
        velocity = self.model.feat_decoder["estimator"](
            (1 - at) * target + at * noise, mu * kept, t, _noisy(condition, _CONDITION_NOISE)
        )
        losses = (velocity.float() - (noise - target)).square().mean((1, 2))
        return (losses * real).sum() / (count * draws)


def _repeat(x: Tensor, times: int) -> Tensor:
    return x if times == 1 else torch.cat([x] * times)


def _noisy(patches: Tensor, max_level: float) -> Tensor:
    level = max_level * torch.rand(len(patches), 1, 1, device=patches.device)
    return patches + level * torch.randn_like(patches)


def batches(sampler: Sampler) -> Iterator[Batch]:
    """Endless batches, assembled in a background thread."""
    ready: queue.Queue[Batch] = queue.Queue(32)

    def assemble() -> None:
        while True:
            for batch in sampler.epoch():
                ready.put(batch)

    threading.Thread(target=assemble, daemon=True).start()
    while True:
        yield ready.get()


def train(options: argparse.Namespace) -> None:
    """Train until the schedule ends, saving at intervals."""
    torch.manual_seed(options.seed)
    device = processes.start()
    torch.set_float32_matmul_precision("high")
    options.output.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    training, log = LanguageModelTraining(options, device), Log(options.output / "log.jsonl")
    torch.manual_seed(options.seed + processes.rank)
    start = options.output / CHECKPOINT
    if start.exists():
        training.load(start)
    elif options.initial:
        training.start_from(options.initial)
    log.write(step=training.step, loading=time.monotonic() - began, patches=training.sampler.total_patches)
    schedule = Schedule(options.steps, options.minutes, training.seconds, options.cool_down)
    steps: dict[Shape, tuple[StaticBatch, CapturedStep]] = {}
    pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
    update: CapturedStep | None = None
    saved, first, cooled = schedule.seconds, training.step, False
    for batch in batches(training.sampler):
        if schedule.ended(training.step):
            break
        if batch.shape not in steps:
            static = StaticBatch(batch.shape, device)
            static.fill(batch)
            captured = CapturedStep(lambda s=static: training.gradients_on(s), device, pool)  # type: ignore[misc]
            steps[batch.shape] = static, captured
        if update is None:
            # The warm-up steps before a capture must not change the weights.
            set_rate(training.optimizer, 0.0)
            update = CapturedStep(training.update, device)
        # Restored moments are coarse, so each part warms up.
        warm_up = min(1.0, (training.step - first + 1) / 1000)
        cooling = schedule.cooling(training.step)
        if cooling < 1 and not cooled:
            training.save(schedule)
            cooled = True
        set_rate(training.optimizer, options.rate * warm_up * cooling)
        static, gradients = steps[batch.shape]
        static.fill(batch)
        metrics = dict(gradients())
        processes.average(training.gradients.flat)
        metrics |= update()
        training.step += 1
        if training.step % options.log_every == 0:
            values = {name: float(value) for name, value in metrics.items()}
            log.write(step=training.step, seconds=schedule.seconds, length=batch.shape.length, **values)
            if schedule.seconds - saved > options.save_seconds:
                saved = schedule.seconds
                training.save(schedule, cooled=cooled)
    training.save(schedule, cooled=cooled)
    processes.stop()


def parser() -> argparse.ArgumentParser:
    """The command-line parser."""
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("data", type=Path, help="folder of shards of latents")
    p.add_argument("-o", "--output", type=Path, required=True)
    p.add_argument("--initial", type=Path, help="start.pt of an earlier part, or a checkpoint's folder")
    p.add_argument("--steps", type=int, default=60_000)
    p.add_argument(
        "--minutes", type=float, help="end this part after this time; start.pt begins the next one"
    )
    p.add_argument(
        "--cool-down", type=float, default=0.2, help="last fraction of this part, down to a rate of 0"
    )
    p.add_argument("--tokens", type=int, default=12_288, help="positions per batch")
    p.add_argument(
        "--draws", type=int, default=4, help="flow-matching draws (time and noise) per patch and step"
    )
    p.add_argument("--paired", type=float, default=0.4, help="fraction of the utterances that are paired")
    p.add_argument("--rate", type=float, default=1e-3, help="peak learning rate")
    p.add_argument("--average", type=float, default=0.9995)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--log-every", type=int, default=200)
    p.add_argument("--save-seconds", type=float, default=60)
    return p


if __name__ == "__main__":
    train(parser().parse_args())
