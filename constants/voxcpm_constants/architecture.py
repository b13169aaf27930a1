"""Hyper-parameters of a VoxCPM checkpoint: its `config.json`, parsed strictly, and derived sizes.

Defaults are upstream's; `generations` has everything that differs between generations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError, model_validator

from voxcpm_constants.bounds import MAX_LAYERS, MAX_POSITIONS, MAX_RATE
from voxcpm_constants.errors import CheckpointError, first_wrong_field
from voxcpm_constants.generations import GENERATIONS, Generation, Traits
from voxcpm_constants.json_files import checkpoint_json

_Layers = Annotated[int, Field(gt=0, le=MAX_LAYERS)]
# Published checkpoints have widths of at most 8192, strides of at most 8, and 73,448 tokens.
_Width = Annotated[int, Field(gt=0, le=1 << 17)]
_Positions = Annotated[int, Field(gt=0, le=MAX_POSITIONS)]
_Rate = Annotated[int, Field(gt=0, le=MAX_RATE)]
_Stride = Annotated[int, Field(gt=0, le=1 << 12)]
_Strides = Annotated[tuple[_Stride, ...], Field(min_length=1, max_length=16)]
_Factors = Annotated[tuple[float, ...], Field(max_length=1 << 17)]


class _Config(BaseModel, extra="allow", frozen=True, allow_inf_nan=False):
    """Upstream ignores unknown keys. They are allowed here too, but stored, so that `unknown_keys` can report typos."""


class RopeScaling(_Config):
    """LongRoPE's factors, head_dim / 2 of each kind: one per rotated pair of a head's dimensions."""

    type: str = "longrope"
    long_factor: _Factors
    short_factor: _Factors
    original_max_position_embeddings: _Positions


class LanguageModelConfig(_Config):
    """`lm_config`: the base language model (MiniCPM4). The other transformers override only their sizes."""

    hidden_size: _Width
    intermediate_size: _Width
    max_position_embeddings: _Positions
    num_attention_heads: _Width
    num_hidden_layers: _Layers
    num_key_value_heads: _Width
    rms_norm_eps: float = Field(gt=0)
    rope_theta: float = Field(gt=0)
    rope_scaling: RopeScaling
    vocab_size: int = Field(gt=0, le=1 << 22)
    bos_token_id: int = 1
    eos_token_id: int = 2
    use_mup: bool = True
    scale_emb: float
    dim_model_base: int
    scale_depth: float
    kv_channels: _Width | None = None


class LocalTransformerConfig(_Config):
    """Width and depth of the local encoder or the local DiT; the other sizes are the language model's."""

    hidden_dim: _Width = 1024
    ffn_dim: _Width = 4096
    num_heads: _Width = 16
    num_layers: _Layers = 4
    kv_channels: _Width | None = None


class CfmConfig(_Config):
    """`cfm_config`: conditional flow matching. Steps and guidance are options of each call instead."""

    sigma_min: float = 1e-6
    solver: str = "euler"
    t_scheduler: str = "log-norm"
    training_cfg_rate: float = 0.1
    inference_cfg_rate: float = 1.0


class DiTConfig(LocalTransformerConfig):
    """`dit_config`: the local DiT and its flow matching."""

    cfm_config: CfmConfig
    dit_mean_mode: bool = False
    # Published with VoxCPM2, but never read: upstream's field is called dit_mean_mode.
    mean_mode: bool = False


class AudioVAEConfig(_Config):
    """`audio_vae_config`: channels, strides and sample rates (Hz) of the AudioVAE; the last five are VoxCPM2's."""

    encoder_dim: _Width = 128
    encoder_rates: _Strides = (2, 5, 8, 8)
    latent_dim: _Width = 64
    decoder_dim: _Width = 1536
    decoder_rates: _Strides = (8, 8, 5, 2)
    depthwise: bool = True
    sample_rate: _Rate = 16000
    use_noise_block: bool = False
    out_sample_rate: _Rate | None = None
    sr_bin_boundaries: tuple[int, ...] | None = None
    cond_type: str = "scale_bias"
    cond_dim: int = 128
    cond_out_layer: bool = False


@dataclass(frozen=True)
class Transformer:
    """Sizes of one MiniCPM4 stack, including those inherited from the language model."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    residual_scale: float  # Factor on every residual branch: scale_depth / sqrt(layers) with muP, else 1
    use_rope: bool


class Architecture(_Config):
    """A checkpoint's `config.json`; the properties are what conversion and runtime read."""

    generation: Generation = Field(default="voxcpm", alias="architecture")
    """The key is `architecture`, as upstream writes it."""
    lm_config: LanguageModelConfig
    patch_size: _Width = 2
    feat_dim: _Width = 64
    residual_lm_num_layers: _Layers = 6
    residual_lm_no_rope: bool = False
    scalar_quantization_latent_dim: _Width = 256
    scalar_quantization_scale: _Width = 9
    encoder_config: LocalTransformerConfig
    dit_config: DiTConfig
    audio_vae_config: AudioVAEConfig = AudioVAEConfig()
    max_length: _Positions = 4096
    dit_mean_mode: bool = False
    # The device and dtype that upstream would use; not used here.
    device: str = "cuda"
    dtype: str = "bfloat16"

    @model_validator(mode="before")
    @classmethod
    def _generation_defaults(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        named = str(values.get("architecture", "voxcpm")).lower()
        vae = values.get("audio_vae_config")
        values = {**values, "architecture": named, "audio_vae_config": {} if vae is None else vae}
        traits = GENERATIONS.get(named)  # type: ignore[call-overload]
        if traits is None:
            return values
        if isinstance(values["audio_vae_config"], dict):
            values["audio_vae_config"] = {**traits.audio_vae_defaults, **values["audio_vae_config"]}
        return {**traits.config_defaults, **values}

    @model_validator(mode="after")
    def _check_latent_width(self) -> Architecture:
        if self.feat_dim != self.audio_vae_config.latent_dim:
            raise ValueError(
                f"feat_dim ({self.feat_dim}) must equal "
                f"audio_vae_config.latent_dim ({self.audio_vae_config.latent_dim})"
            )
        return self

    @classmethod
    def from_file(cls, path: Path) -> Architecture:
        """Read `config.json`. Raises CheckpointError, whose message names the first wrong field."""
        return cls.from_document(checkpoint_json(path, "a VoxCPM config.json"), str(path))

    @classmethod
    def from_document(cls, document: object, name: str = "config.json") -> Architecture:
        """Validate a parsed `config.json`. Raises CheckpointError, whose message starts with `name`."""
        try:
            return cls.model_validate(document)
        except ValidationError as error:
            raise CheckpointError(
                f"{name}: not the config.json of a VoxCPM checkpoint ({' or '.join(GENERATIONS)}): "
                f"{first_wrong_field(error)}"
            ) from None

    @property
    def traits(self) -> Traits:
        """Everything that differs between this generation and the others."""
        return GENERATIONS[self.generation]

    @property
    def base_lm(self) -> Transformer:
        """Sizes of the base language model."""
        return self._language_model(self.lm_config.num_hidden_layers)

    @property
    def residual_lm(self) -> Transformer:
        """Sizes of the residual language model, which has the base LM's width."""
        return self._language_model(self.residual_lm_num_layers, use_rope=not self.residual_lm_no_rope)

    @property
    def feat_encoder(self) -> Transformer:
        """Sizes of the local encoder, which turns a latent patch into one vector."""
        return self._transformer(self.encoder_config)

    @property
    def locdit(self) -> Transformer:
        """Sizes of the local DiT, which predicts the velocity of a noisy patch."""
        return self._transformer(self.dit_config)

    def _language_model(self, layers: int, *, use_rope: bool = True) -> Transformer:
        lm = self.lm_config
        local = LocalTransformerConfig(
            hidden_dim=lm.hidden_size,
            ffn_dim=lm.intermediate_size,
            num_heads=lm.num_attention_heads,
            num_layers=layers,
            kv_channels=lm.kv_channels,
        )
        return self._transformer(local, use_rope=use_rope)

    def _transformer(self, config: LocalTransformerConfig, *, use_rope: bool = True) -> Transformer:
        lm, layers = self.lm_config, config.num_layers
        return Transformer(
            hidden_size=config.hidden_dim,
            intermediate_size=config.ffn_dim,
            num_layers=layers,
            num_heads=config.num_heads,
            num_kv_heads=lm.num_key_value_heads,
            head_dim=config.kv_channels or config.hidden_dim // config.num_heads,
            rms_norm_eps=lm.rms_norm_eps,
            residual_scale=lm.scale_depth / math.sqrt(layers) if lm.use_mup else 1.0,
            use_rope=use_rope,
        )

    @property
    def text_embedding_scale(self) -> float:
        """Factor on text embeddings: scale_emb with muP, else 1, as upstream."""
        return self.lm_config.scale_emb if self.lm_config.use_mup else 1.0

    @property
    def mean_mode(self) -> bool:
        """Whether the DiT's input `dt` is the step length; otherwise it is zero."""
        config = self.dit_config if self.traits.mean_mode_in_dit_config else self
        return config.dit_mean_mode

    @property
    def mu_size(self) -> int:
        """Width of the DiT's condition: its tokens, concatenated."""
        return self.traits.mu_tokens * self.dit_config.hidden_dim

    @property
    def input_sample_rate(self) -> int:
        """Sample rate of the AudioVAE encoder's input, in Hz."""
        return self.audio_vae_config.sample_rate

    @property
    def output_sample_rate(self) -> int:
        """Sample rate of the AudioVAE decoder's output, in Hz."""
        return self.audio_vae_config.out_sample_rate or self.audio_vae_config.sample_rate

    @property
    def patch_input_samples(self) -> int:
        """Samples in one patch at the input sample rate."""
        return self.patch_size * math.prod(self.audio_vae_config.encoder_rates)

    @property
    def patch_output_samples(self) -> int:
        """Samples in one patch at the output sample rate."""
        return self.patch_size * math.prod(self.audio_vae_config.decoder_rates)

    @property
    def patch_seconds(self) -> float:
        """Duration of one patch, in seconds."""
        return self.patch_output_samples / self.output_sample_rate

    def unknown_keys(self) -> list[str]:
        """Dotted names of the keys in config.json that no generation of upstream reads, sorted."""
        return sorted(_extra_keys(self, ""))


def _extra_keys(config: BaseModel, prefix: str) -> list[str]:
    names = [prefix + key for key in (config.model_extra or {})]
    for key in type(config).model_fields:
        value = getattr(config, key)
        if isinstance(value, BaseModel):
            names += _extra_keys(value, f"{prefix}{key}.")
    return names
