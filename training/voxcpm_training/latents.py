"""Latents of all utterances from a trained AudioVAE, computed in device memory within seconds."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from voxcpm_training import processes
from voxcpm_training.architecture import CONFIG, HOP
from voxcpm_training.audio_vae_modules import AudioVAE
from voxcpm_training.earlier_weights import audio_vae_weights

_READ_AHEAD = 4


def load_audio_vae(path: Path, device: torch.device) -> AudioVAE:
    """Load the AudioVAE of an averaged.pt or a checkpoint's folder, for inference."""
    vae = AudioVAE(CONFIG["audio_vae_config"]).to(device)
    vae.load_state_dict(audio_vae_weights(path, device))
    return vae.eval().requires_grad_(requires_grad=False)


@torch.no_grad()
def encode_shards(vae: AudioVAE, paths: list[Path], device: torch.device, *, batch: int = 64) -> Tensor:
    """Normalised latents (frames, latent) of the shards' utterances, concatenated, float32.

    Utterances are padded on the right, which does not change their latents, as the encoder is causal. Each process
    encodes its share of the shards, and gets the latents of all.
    """
    parts = []
    for samples, audio in _read(paths[processes.rank :: processes.world]):
        starts = np.concatenate(([0], np.cumsum(samples)))
        speech = torch.from_numpy(audio).to(device)
        latents = torch.empty(int(starts[-1]) // HOP, CONFIG["feat_dim"], device=device)
        order = np.argsort(samples, kind="stable")
        for at in range(0, len(order), batch):
            chosen = order[at : at + batch]
            padded = torch.zeros(len(chosen), int(samples[chosen].max()), device=device)
            for row, i in enumerate(chosen):
                padded[row, : samples[i]] = speech[starts[i] : starts[i + 1]].float() / 32768
            encoded = vae.encode(padded[:, None]).transpose(1, 2)
            for row, i in enumerate(chosen):
                latents[starts[i] // HOP : starts[i + 1] // HOP] = encoded[row, : samples[i] // HOP]
        parts.append(latents)
    return torch.cat(processes.gather(parts, CONFIG["feat_dim"], device))


def _read(paths: list[Path]) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int16]]]:
    """Lengths and audio of the shards, in order, with read-ahead."""

    def read(path: Path) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int16]]:
        with np.load(path) as shard:
            return shard["samples"].astype(np.int64), shard["audio"]

    with ThreadPoolExecutor() as pool:
        waiting = deque(pool.submit(read, path) for path in paths[:_READ_AHEAD])
        for path in [*paths[_READ_AHEAD:], *[None] * min(_READ_AHEAD, len(paths))]:
            yield waiting.popleft().result()
            if path is not None:
                waiting.append(pool.submit(read, path))
