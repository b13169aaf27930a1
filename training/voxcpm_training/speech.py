"""The synthesised speech: one long signal for the AudioVAE, utterances for the language model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from voxcpm_training.architecture import HOP, SAMPLE_RATE


def finished_shards(folder: Path) -> list[Path]:
    """Paths of the complete shards in a folder, in order."""
    return sorted(path for path in folder.glob("shard-*.npz") if not path.name.endswith(".part.npz"))


class Signal:
    """All speech so far, up to `hours`, as one int16 tensor on the device; shards may appear during training."""

    def __init__(self, folder: Path, device: torch.device, hours: float) -> None:
        self._folder, self._seen = folder, set[Path]()
        self.samples = torch.zeros(int(hours * 3600 * SAMPLE_RATE), dtype=torch.int16, device=device)
        self.length = torch.zeros((), dtype=torch.float64, device=device)
        self._filled = 0
        self.refresh()

    def refresh(self, maximum: int | None = None) -> int:
        """Load new shards, at most `maximum` and as far as they fit. Returns the total number of loaded shards."""
        for path in [p for p in finished_shards(self._folder) if p not in self._seen][:maximum]:
            with np.load(path) as shard:
                audio = torch.from_numpy(shard["audio"])
            room = min(len(audio), len(self.samples) - self._filled)
            self.samples[self._filled : self._filled + room].copy_(audio[:room])
            self._filled += room
            self._seen.add(path)
        self.length.fill_(self._filled)
        return len(self._seen)

    def segments(self, count: int, samples: int) -> Tensor:
        """Random segments (count, samples), float32 in [-1, 1]; a segment may contain parts of several utterances."""
        device = self.samples.device
        starts = torch.rand(count, device=device, dtype=torch.float64) * (self.length - samples - 1)
        places = starts.long()[:, None] + torch.arange(samples, device=device)
        return self.samples[places].float() / 32768


@dataclass(frozen=True)
class Utterances:
    """All utterances of the shards, concatenated."""

    text: npt.NDArray[np.uint8]
    """Token ids of all texts."""
    characters: npt.NDArray[np.int64]
    """Number of tokens per utterance."""
    phones: npt.NDArray[np.uint8]
    """Phone class of every latent frame."""
    frames: npt.NDArray[np.int64]
    """Number of latent frames per utterance."""
    speaker: npt.NDArray[np.uint16]
    """Index in `voices.SPEAKERS` for each utterance."""

    @classmethod
    def of_shards(cls, paths: list[Path]) -> Utterances:
        """Load the utterances of shards of latents."""
        columns: dict[str, list[npt.NDArray[Any]]] = {}
        for path in paths:
            with np.load(path) as shard:
                for name in ("text", "characters", "phones", "samples", "speaker"):
                    columns.setdefault(name, []).append(shard[name])
        joined = {name: np.concatenate(parts) for name, parts in columns.items()}
        return cls(
            text=joined["text"].astype(np.uint8), characters=joined["characters"].astype(np.int64),
            phones=joined["phones"].astype(np.uint8), frames=joined["samples"].astype(np.int64) // HOP,
            speaker=joined["speaker"].astype(np.uint16),
        )  # fmt: skip
