"""The left contexts of the AudioVAE's causal convolutions: the state of its two step models."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product

from voxcpm_constants.architecture import Architecture

_RESIDUAL_UNIT_WIDTHS = (6, 18, 54)  # Left contexts of its three convolutions, dilated by 1, 3 and 9


def downsampling_context(a: Architecture, stride: int) -> int:
    """Left context, in samples, of an encoder convolution with this stride and a kernel of twice the stride."""
    return 2 * math.ceil(stride / 2) - (stride % 2 if a.traits.encoder_output_padding else 0)


def encoder_contexts(a: Architecture) -> Iterator[tuple[int, int]]:
    """(channels, samples) of the left context of each encoder convolution wider than 1, in order of execution."""
    vae = a.audio_vae_config
    channels = vae.encoder_dim
    yield 1, 6
    for stride in vae.encoder_rates:
        yield from product([channels], _RESIDUAL_UNIT_WIDTHS)
        yield channels, downsampling_context(a, stride)
        channels *= 2
    yield channels, 2


def decoder_contexts(a: Architecture) -> Iterator[tuple[int, int]]:
    """(channels, samples) of the left context of each decoder convolution wider than 1, in order of execution.

    A transposed convolution needs one sample.
    """
    vae = a.audio_vae_config
    yield vae.latent_dim, 6
    channels = vae.decoder_dim
    for _ in vae.decoder_rates:
        yield channels, 1
        channels //= 2
        yield from product([channels], _RESIDUAL_UNIT_WIDTHS)
    yield channels, 6
