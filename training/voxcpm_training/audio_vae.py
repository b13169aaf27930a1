"""Train the AudioVAE: `python -m voxcpm_training.audio_vae data -o vae`.

The loss is a distance of spectrograms at several resolutions; discriminators are added from `--adversarial-from` on.
The latents have unit variance. The decoder gets them with noise of a random level per segment (like the sigma-VAE of
arXiv 2412.08635), so that it tolerates the language model's errors. `--decoder-only` freezes the encoder, so that
latents do not change.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from voxcpm_training import processes
from voxcpm_training.architecture import CONFIG, HOP
from voxcpm_training.audio_vae_modules import AudioVAE
from voxcpm_training.discriminators import Discriminators, discriminator_loss, generator_losses
from voxcpm_training.earlier_weights import audio_vae_weights
from voxcpm_training.spectral_losses import SpectralLoss
from voxcpm_training.speech import Signal
from voxcpm_training.training_loop import (
    AveragedWeights,
    CapturedStep,
    CollapseCheck,
    Gradients,
    Log,
    Metrics,
    Schedule,
    adamw,
    bytes_to_weights,
    cosine,
    factored_moments,
    half_precision,
    restore_moments,
    save,
    set_rate,
    weights_to_bytes,
)  # fmt: skip

CHECKPOINT = "audio_vae.pt"
# Weights of the discriminators' losses, which are sums. Features are relative distances here, absolute ones in DAC.
_FEATURES, _ADVERSARIAL = 0.4, 1.0
# Normalised latents do not depend on the encoder's scale, which otherwise grows without end: to 85,000 in 4,000 steps,
# faster than averaged weights follow.
_PRIOR = 1.0


class AudioVAETraining:
    """AudioVAE, discriminators, optimizers, training speech, and the training step."""

    def __init__(self, options: argparse.Namespace, device: torch.device) -> None:
        self.options, self.device = options, device
        self.vae = AudioVAE(CONFIG["audio_vae_config"]).to(device)
        self.judges = Discriminators().to(device)
        self.spectral = SpectralLoss(CONFIG["audio_vae_config"]["sample_rate"]).to(device)
        trained: nn.Module = self.vae.decoder if options.decoder_only else self.vae
        self.trained = list(trained.parameters())
        self.optimizer = adamw(self.trained, device, (0.8, 0.99))
        self.judges_optimizer = adamw(self.judges.parameters(), device, (0.8, 0.99))
        self.gradients, self.judges_gradients = Gradients(self.trained), Gradients(self.judges.parameters())
        self.averaged = AveragedWeights(self.vae, 0.999)
        processes.synchronise(self.vae)
        processes.synchronise(self.judges)
        self.signal = Signal(options.data, device, options.hours)
        self.step, self.seconds = 0, 0.0

    def load(self, path: Path) -> None:
        """Resume from audio_vae.pt."""
        state = torch.load(path, map_location=self.device, weights_only=True)
        self._start_from(state["averaged"])
        self.vae.load_state_dict(state["vae"])
        self.judges.load_state_dict(state["judges"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.judges_optimizer.load_state_dict(state["judges_optimizer"])
        self.step, self.seconds = state["step"], state["seconds"]

    def start_from(self, path: Path) -> None:
        """Continue from another part's start.pt, or initialise from a checkpoint's folder, which has weights only."""
        if path.is_dir():
            self._start_from(audio_vae_weights(path, self.device))
            return
        state = torch.load(path, map_location=self.device, weights_only=True)
        self._start_from({name: tensor.float() for name, tensor in state["averaged"].items()})
        self.judges.load_state_dict(bytes_to_weights(state["judges"]))
        # The decoder's parameters are the last ones, and all of those that --decoder-only trains.
        restore_moments(self.optimizer, state["optimizer"][-len(self.trained) :])
        restore_moments(self.judges_optimizer, state["judges_optimizer"])
        self.step = state["step"]

    def _start_from(self, weights: dict[str, torch.Tensor]) -> None:
        self.vae.load_state_dict(weights)
        self.averaged.load(weights)
        if self.options.decoder_only:
            # Latents do not change, so language models trained on them stay valid.
            self.vae.encoder.requires_grad_(requires_grad=False)
            self.vae.normalisation.eval()

    def save(self, schedule: Schedule) -> None:
        """Write audio_vae.pt to resume from, averaged.pt for later stages, and start.pt for the next part elsewhere."""
        folder: Path = self.options.output
        averaged = self.averaged.state_dict()
        everything: dict[str, Any] = {
            "vae": self.vae.state_dict(), "averaged": averaged, "judges": self.judges.state_dict(),
            "optimizer": self.optimizer.state_dict(), "judges_optimizer": self.judges_optimizer.state_dict(),
            "step": self.step, "seconds": schedule.seconds,
        }  # fmt: skip
        save(folder / CHECKPOINT, everything)
        save(folder / "averaged.pt", averaged)
        # All that --initial needs, at a tenth of the size.
        start = {
            "averaged": {name: tensor.half() for name, tensor in averaged.items()},
            "judges": weights_to_bytes(self.judges.state_dict()), "optimizer": factored_moments(self.optimizer),
            "judges_optimizer": factored_moments(self.judges_optimizer), "step": self.step,
        }  # fmt: skip
        save(folder / "start.pt", start)

    def update(self, *, adversarial: bool) -> Metrics:
        """Update the AudioVAE, and the discriminators if adversarial; returns the AudioVAE's gradient norm."""
        if adversarial:
            self.judges_gradients.clip_outliers()
            self.judges_optimizer.step()
        norm = self.gradients.clip_outliers()
        self.optimizer.step()
        self.averaged.update()
        return {"norm": norm}

    def set_rates(self, rate: float, judges_rate: float) -> None:
        """Set the learning rates of AudioVAE and discriminators."""
        set_rate(self.optimizer, rate)
        set_rate(self.judges_optimizer, judges_rate)

    def share_gradients(self, *, adversarial: bool) -> None:
        """Average the gradients over all processes."""
        processes.average(self.gradients.flat)
        if adversarial:
            processes.average(self.judges_gradients.flat)

    def compute_gradients(self, *, adversarial: bool) -> Metrics:
        """Compute gradients, also of the discriminators if adversarial; returns the losses."""
        o = self.options
        self.gradients.flat.zero_()
        self.judges_gradients.flat.zero_()
        audio = self.signal.segments(o.batch, o.segment)
        audio = (audio * (0.6 + 0.8 * torch.rand(o.batch, 1, device=self.device))).clamp(-1, 1)
        with half_precision(self.device):
            raw = self.vae.encoder(audio[:, None]).float()
            latents = self.vae.normalisation(raw)
            levels = o.noise * torch.randn(o.batch, 1, 1, device=self.device)
            decoded = self.vae.decoder(latents + levels * torch.randn_like(latents))[:, 0].float()
            mel, linear, phase = self.spectral_loss(decoded, audio)
            metrics: Metrics = {"mel": mel, "linear": linear, "phase": phase, "prior": prior_loss(raw)}
            loss = o.spectral * (mel + linear) + o.phase * phase + _PRIOR * metrics["prior"]
            if adversarial:
                # Both losses use the same weights, so the discriminators run once per step. They need less context than
                # the AudioVAE.
                judged = self.judges(torch.cat((audio, decoded))[:, -o.judged :])
                metrics["judges"] = discriminator_loss(judged)
                metrics["adversarial"], metrics["features"] = generator_losses(judged)
                loss = loss + _ADVERSARIAL * metrics["adversarial"] + _FEATURES * metrics["features"]
        if adversarial:
            self.judges_gradients.add(metrics["judges"], retain_graph=True)
        self.gradients.add(loss)
        return {name: value.detach() for name, value in metrics.items()}

    def spectral_loss(self, decoded: torch.Tensor, audio: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """`SpectralLoss` of two signals (batch, samples), in float32."""
        with torch.autocast(self.device.type, enabled=False):
            return self.spectral(decoded, audio)


def prior_loss(latents: torch.Tensor) -> torch.Tensor:
    """Distance of each dimension's mean and variance from 0 and 1: twice the KL divergence of normal distributions.

    latents: before normalisation, (batch, latent, frames).
    """
    variance = latents.var((0, 2), correction=0) + 1e-8
    return (latents.mean((0, 2)).square() + variance - 1 - variance.log()).mean()


def train(options: argparse.Namespace) -> None:
    """Train until the schedule ends, saving at intervals."""
    torch.manual_seed(options.seed)
    device = processes.start()
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    options.output.mkdir(parents=True, exist_ok=True)
    training, log = AudioVAETraining(options, device), Log(options.output / "log.jsonl")
    torch.manual_seed(options.seed + processes.rank)
    start = options.output / CHECKPOINT
    if start.exists():
        training.load(start)
    elif options.initial:
        training.start_from(options.initial)
    schedule = Schedule(options.steps, options.minutes, training.seconds)
    first = training.step
    captured: dict[bool, tuple[CapturedStep, CapturedStep]] = {}
    saved, check_collapse = schedule.seconds, CollapseCheck()
    while not schedule.ended(training.step):
        progress = training.step / options.steps
        adversarial = progress >= options.adversarial_from
        if adversarial not in captured:
            training.set_rates(0.0, 0.0)  # the warm-up steps before a capture must not change the weights
            steps = (training.compute_gradients, training.update)
            gradients, update = (CapturedStep(partial(s, adversarial=adversarial), device) for s in steps)
            captured[adversarial] = gradients, update
        # Restored moments are coarse, so each part warms up.
        warm_up = min(1.0, (training.step - first + 1) / 500)
        rates = (warm_up * cosine(progress, top, top / 40) for top in (options.rate, options.judges_rate))
        training.set_rates(*rates)
        gradients, update = captured[adversarial]
        metrics = dict(gradients())
        training.share_gradients(adversarial=adversarial)
        metrics |= update()
        training.step += 1
        if training.step % options.log_every == 0:
            shards = training.signal.refresh(maximum=8)
            log.write(
                step=training.step, seconds=schedule.seconds, shards=shards,
                **{name: float(value) for name, value in metrics.items()},
            )  # fmt: skip
            check_collapse(training.step, float(metrics["mel"]))
            if schedule.seconds - saved > options.save_seconds:
                saved = schedule.seconds
                training.save(schedule)
    training.save(schedule)
    processes.stop()


def parser() -> argparse.ArgumentParser:
    """The command-line parser."""
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("data", type=Path, help="folder of shards")
    p.add_argument("-o", "--output", type=Path, required=True)
    p.add_argument("--initial", type=Path, help="start.pt of an earlier run, or a checkpoint's folder")
    p.add_argument("--decoder-only", action="store_true")
    p.add_argument(
        "--steps", type=int, default=120_000, help="steps of all parts together, over which the rates fall"
    )
    p.add_argument(
        "--minutes", type=float, help="end this part after this time; the next one continues the schedule"
    )
    p.add_argument(
        "--adversarial-from", type=float, default=0.02, help="share of the training without discriminators"
    )
    p.add_argument("--batch", type=int, default=8, help="segments per batch and process")
    p.add_argument("--segment", type=int, default=40 * HOP, help="samples per segment")
    p.add_argument("--judged", type=int, default=24 * HOP, help="samples of a segment for the discriminators")
    p.add_argument("--hours", type=float, default=80, help="maximum hours of speech loaded onto the device")
    p.add_argument("--spectral", type=float, default=15.0, help="weight of each distance of spectrograms")
    p.add_argument(
        "--phase", type=float, default=10.0, help="weight of the distance of phases at low frequencies"
    )
    p.add_argument(
        "--noise",
        type=float,
        default=0.15,
        help="deviation of the random noise level on the latents, whose own is 1",
    )
    p.add_argument("--rate", type=float, default=5e-4, help="peak learning rate")
    p.add_argument("--judges-rate", type=float, default=2e-4)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--log-every", type=int, default=200)
    p.add_argument("--save-seconds", type=float, default=60)
    return p


if __name__ == "__main__":
    train(parser().parse_args())
