"""Judge an AudioVAE by its copies of recordings: `python -m voxcpm_training.evaluation vae/averaged.pt`.

Half a minute on a CPU, so for each checkpoint. Exits with 1 if a mean is below the gates in
`voxcpm_validation.listening.copies`: no language model is worth training then.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console

from voxcpm_runtime.audio.reading import resample
from voxcpm_training.architecture import HOP, SAMPLE_RATE
from voxcpm_training.latents import load_audio_vae
from voxcpm_validation.listening.copies import copies, passes
from voxcpm_validation.listening.parts import Report, tables
from voxcpm_validation.listening.sound_quality import SoundJudge

Floats = npt.NDArray[np.float32]


def main() -> int:
    """Print the scores of each prompt's copy; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("vae", type=Path, help="the AudioVAE's averaged.pt, or a checkpoint's folder")
    parser.add_argument(
        "--noise",
        type=float,
        default=0.0,
        help="deviation of noise on the latents, like a language model's errors",
    )
    options = parser.parse_args()
    vae = load_audio_vae(options.vae, torch.device("cpu"))
    rng = torch.Generator().manual_seed(0)

    @torch.inference_mode()
    def copy(audio: Floats, rate: int) -> tuple[Floats, Floats, int]:
        original = resample(audio, rate, SAMPLE_RATE)
        padded = np.pad(original, (0, -len(original) % HOP))
        latents = vae.encode(torch.from_numpy(padded)[None, None])
        noise = options.noise * torch.randn(latents.shape, generator=rng)
        return original, vae.decoder(latents + noise)[0, 0].numpy(), SAMPLE_RATE

    scores = copies("AudioVAE", copy, SoundJudge())
    output = Console(width=132)
    for table in tables(Report(copies=scores)):
        output.print(table)
    return 0 if passes(scores) else 1


if __name__ == "__main__":
    raise SystemExit(main())
