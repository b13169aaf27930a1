"""A table of everything that differs between the generations of VoxCPM.

0.5B and 1.5 share one structure, which `config.json` calls "voxcpm"; VoxCPM2 is "voxcpm2". Sources: upstream
`model/voxcpm.py`, `model/voxcpm2.py`, `modules/audiovae/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Generation = Literal["voxcpm", "voxcpm2"]


@dataclass(frozen=True)
class Traits:
    """The properties of one generation."""

    modes: tuple[str, ...]  # Supported modes, as named in the documentation
    takes_reference: bool
    """Whether it supports a reference recording of the voice, and a control: a voice or style in words."""
    mu_tokens: int
    """Tokens of the DiT's condition: 1, the sum of the two language models' projections; 2, both concatenated."""
    fuses_residual_input: bool
    """Whether the residual LM's input is a projection of (hidden, embedding); otherwise it is their sum."""
    decoder_context_patches: int
    """Prompt patches that the AudioVAE decoder receives before the generated ones (streaming_prefix_len - 1)."""
    context_counts_as_speech: bool
    """Whether upstream counts those patches when it checks whether speech is too long for its text."""
    encoder_output_padding: bool
    """Whether an encoder convolution of odd stride needs one sample less of left context."""
    mean_mode_in_dit_config: bool
    """Whether `dit_mean_mode` is read from `dit_config`; otherwise from the top of config.json."""
    stores_rate_boundaries: bool  # Whether the AudioVAE's weight file holds `sr_bin_boundaries`
    upstream_class: str  # Name of upstream's class for this generation
    languages: tuple[str, ...]
    """Languages in upstream's model cards, as ISO 639 codes; a checkpoint's `speech.json` overrides them."""
    config_defaults: Mapping[str, Any] = field(default_factory=dict)
    """Upstream's defaults for keys missing from config.json, where they differ from those of 0.5B."""
    audio_vae_defaults: Mapping[str, Any] = field(default_factory=dict)
    """Upstream's defaults for keys missing from `audio_vae_config`, where they differ from those of 0.5B."""


_THIRTY_LANGUAGES = (
    "ar", "my", "zh", "da", "nl", "en", "fi", "fr", "de", "el", "he", "hi", "id", "it", "ja",
    "km", "ko", "lo", "ms", "no", "pl", "pt", "ru", "es", "sw", "sv", "tl", "th", "tr", "vi",
)  # fmt: skip

GENERATIONS: dict[Generation, Traits] = {
    "voxcpm": Traits(
        modes=("zero-shot", "continuation"),
        takes_reference=False,
        mu_tokens=1,
        fuses_residual_input=False,
        decoder_context_patches=2,
        context_counts_as_speech=True,
        encoder_output_padding=False,
        mean_mode_in_dit_config=False,
        stores_rate_boundaries=False,
        upstream_class="VoxCPMModel",
        languages=("zh", "en"),
    ),
    "voxcpm2": Traits(
        modes=("zero-shot", "voice design", "style control", "reference", "continuation", "combined"),
        takes_reference=True,
        mu_tokens=2,
        fuses_residual_input=True,
        decoder_context_patches=3,
        context_counts_as_speech=False,
        encoder_output_padding=True,
        mean_mode_in_dit_config=True,
        stores_rate_boundaries=True,
        upstream_class="VoxCPM2Model",
        languages=_THIRTY_LANGUAGES,
        config_defaults={
            "patch_size": 4,
            "residual_lm_num_layers": 8,
            "scalar_quantization_latent_dim": 512,
            "max_length": 8192,
        },
        audio_vae_defaults={
            "decoder_dim": 2048,
            "decoder_rates": (8, 6, 5, 2, 2, 2),
            "out_sample_rate": 48000,
            "sr_bin_boundaries": (20000, 30000, 40000),
        },
    ),
}
