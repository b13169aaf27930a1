"""Encode the speech: `python -m voxcpm_training.latents data vae/averaged.pt -o latents`.

A shard of latents has the texts and labels of a shard of speech, and latents in 8 bits in place of audio: a fiftieth of
the size, so that one machine can train on what others have synthesised. The language model is trained on these alone.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from voxcpm_training.architecture import CONFIG, HOP
from voxcpm_training.audio_vae_modules import AudioVAE
from voxcpm_training.earlier_weights import audio_vae_weights
from voxcpm_training.speech import finished_shards

_STEP = 1 / 24
"""The step of the 8-bit values. Latents have unit variance: five standard deviations fit, the error is a hundredth."""
_BATCH = 16


def load_audio_vae(path: Path, device: torch.device) -> AudioVAE:
    """Load the AudioVAE of an averaged.pt or a checkpoint's folder, for inference."""
    vae = AudioVAE(CONFIG["audio_vae_config"]).to(device)
    vae.load_state_dict(audio_vae_weights(path, device))
    return vae.eval().requires_grad_(requires_grad=False)


def load_latents(paths: list[Path], device: torch.device) -> Tensor:
    """Normalised latents (frames, latent) of the shards' utterances, concatenated, float32."""
    parts = []
    for path in paths:
        with np.load(path) as shard:
            parts.append(torch.from_numpy(shard["latents"]).to(device))
    return torch.cat(parts).float() * _STEP


@torch.no_grad()
def encode(vae: AudioVAE, samples: npt.NDArray[np.int64], audio: Tensor) -> Tensor:
    """Latents (frames, latent), int8, of concatenated utterances: int16 audio and its length in samples of each.

    Utterances are padded on the right, which does not change their latents, as the encoder is causal.
    """
    starts = np.concatenate(([0], np.cumsum(samples)))
    latents = torch.empty(int(starts[-1]) // HOP, CONFIG["feat_dim"], dtype=torch.int8, device=audio.device)
    order = np.argsort(samples, kind="stable")
    for chosen in (order[at : at + _BATCH] for at in range(0, len(order), _BATCH)):
        padded = torch.zeros(len(chosen), int(samples[chosen].max()), device=audio.device)
        for row, i in enumerate(chosen):
            padded[row, : samples[i]] = audio[starts[i] : starts[i + 1]].float() / 32768
        encoded = (
            (vae.encode(padded[:, None]).transpose(1, 2) / _STEP).round().clamp(-127, 127).to(torch.int8)
        )
        for row, i in enumerate(chosen):
            latents[starts[i] // HOP : starts[i + 1] // HOP] = encoded[row, : samples[i] // HOP]
    return latents


def encode_shard(vae: AudioVAE, path: Path, out: Path, device: torch.device) -> None:
    """Write the latents of a shard of speech, atomically."""
    with np.load(path) as shard:
        columns = {name: shard[name] for name in shard.files if name != "audio"}
        audio = torch.from_numpy(shard["audio"]).to(device)
    columns["latents"] = encode(vae, columns["samples"].astype(np.int64), audio).cpu().numpy()
    part = out.with_suffix(".part.npz")
    np.savez(part, **columns)
    part.rename(out)


def main() -> None:
    """Encode the shards of a folder that are not encoded yet; with --watch, also those that appear until it is done."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="folder of shards")
    parser.add_argument("vae", type=Path, help="the AudioVAE's averaged.pt, or a checkpoint's folder")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder of shards of latents")
    parser.add_argument("--device", default="cuda:0" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--watch", type=float, metavar="SECONDS", help="interval to poll for new shards")
    options = parser.parse_args()
    device = torch.device(options.device)
    vae = load_audio_vae(options.vae, device)
    options.output.mkdir(parents=True, exist_ok=True)
    while True:
        done = (
            options.watch is None or (options.data / "done").exists()
        )  # before the listing: no shard is missed
        for path in finished_shards(options.data):
            if not (out := options.output / path.name).exists():
                encode_shard(vae, path, out, device)
        if done:
            break
        time.sleep(options.watch)


if __name__ == "__main__":
    main()
