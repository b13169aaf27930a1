"""Audio ↔ latent patches through the AudioVAE's step models, whose state carries the convolutions' left context."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from voxcpm_runtime.audio.pcm import Audio
from voxcpm_runtime.backends.step_function import StepFunction
from voxcpm_runtime.model.sequence import Latents, plan_chunks


def encode_audio(
    encoder: StepFunction, audio: Audio, patch_samples: int, chunk_patches: Sequence[int]
) -> Latents:
    """Latent patches (patches, frames, latent_dim) of audio (samples,) that is a whole number of patches long.

    chunk_patches: numbers of patches that the encoder accepts in one call.
    """
    state = encoder.new_state()
    patches = []
    for start, length, size in plan_chunks(len(audio) // patch_samples, chunk_patches):
        chunk = np.zeros((1, 1, size * patch_samples), np.float32)
        samples = audio[start * patch_samples : (start + length) * patch_samples]
        chunk[0, 0, : len(samples)] = samples
        latents = encoder({"audio": chunk}, state)["latents"][0]
        # (latent_dim, size * frames) -> (size, frames, latent_dim)
        patches.append(latents.reshape(len(latents), size, -1).transpose(1, 2, 0)[:length])
    return np.ascontiguousarray(np.concatenate(patches), np.float32)


def patch_decoder(decoder: StepFunction, context: Iterable[Latents] = ()) -> Callable[[Latents], Audio]:
    """A function that decodes patches (frames, latent_dim), in order, to audio (samples,).

    context: patches to decode first, whose audio is dropped. A call always decodes one patch: longer chunks round
    differently, and streaming must give exactly the samples of offline generation.
    """
    state = decoder.new_state()

    def decode(patch: Latents) -> Audio:
        frames = np.ascontiguousarray(patch.T[np.newaxis], np.float32)
        return decoder({"latents": frames}, state)["audio"][0, 0]

    for patch in context:
        decode(patch)
    return decode
