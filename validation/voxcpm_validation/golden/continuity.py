"""Continuity of streamed audio: comparison with the same latents decoded in the largest possible chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from voxcpm_constants.step_models import AUDIO_VAE_DECODER
from voxcpm_runtime.audio.pcm import Audio
from voxcpm_runtime.model.driver import Driver
from voxcpm_runtime.model.sequence import Latents
from voxcpm_validation.measures import agreement


@dataclass(frozen=True)
class Continuity:
    """Streamed audio compared with the monolithic waveform. A step is the difference between successive samples."""

    correlation: float
    boundary_error: float
    """Largest difference between the two waveforms' steps across a chunk boundary; 0 for a single chunk."""
    elsewhere_error: float
    """Largest difference between the two waveforms' steps anywhere else."""


NO_CONTINUITY = Continuity(correlation=0.0, boundary_error=0.0, elsewhere_error=0.0)
"""The result for waveforms of different length."""


def monolithic(driver: Driver, latents: Latents, context: Latents) -> Audio:
    """Audio (samples,) of patches (patches, frames, latent_dim), decoded in the largest possible chunks.

    context (patches, frames, latent_dim): decoded before, without contributing audio.
    """
    decoder, most = driver.models[AUDIO_VAE_DECODER], max(driver.sizes.vae_patches)
    state = decoder.new_state()
    for patch in context:
        decoder({"latents": _frames(patch[np.newaxis])}, state)
    parts = []
    for start in range(0, len(latents), most):
        chunk = latents[start : start + most]
        # Zeros after the last patch do not change the audio before them, because the decoder is causal.
        padded = np.pad(chunk, ((0, most - len(chunk)), (0, 0), (0, 0)))
        audio = decoder({"latents": _frames(padded)}, state)["audio"][0, 0]
        parts.append(audio[: len(audio) // most * len(chunk)])
    return np.concatenate(parts)


def continuity(streamed: Audio, whole: Audio, boundaries: Sequence[int]) -> Continuity:
    """Comparison of two waveforms (samples,) of equal length. boundaries: first sample of each chunk but the first."""
    errors = np.abs(np.diff(streamed.astype(np.float64)) - np.diff(whole.astype(np.float64)))
    at_boundary = np.zeros(len(errors), np.bool_)
    at_boundary[np.array(boundaries, np.int64) - 1] = True
    return Continuity(
        correlation=agreement(streamed, whole).correlation,
        boundary_error=float(np.max(errors[at_boundary], initial=0.0)),
        elsewhere_error=float(np.max(errors[~at_boundary], initial=0.0)),
    )


def _frames(patches: Latents) -> Latents:
    """The decoder's input (1, latent_dim, patches * frames) for patches (patches, frames, latent_dim)."""
    return np.ascontiguousarray(np.concatenate(patches).T[np.newaxis], np.float32)
