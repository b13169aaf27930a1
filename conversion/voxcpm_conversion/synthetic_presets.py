"""Configurations for synthetic checkpoints, tiny and of published sizes, and a small tokenizer for them.

The tiny presets have the properties of published configurations in a small size: grouped queries, a head dimension
that is not hidden/heads, long rope factors, odd and even strides.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from voxcpm_constants.tokenizer_file import AUDIO_END, AUDIO_START, REFERENCE_END, REFERENCE_START

Dtype = Literal["bfloat16", "float16", "float32"]
DTYPES: tuple[Dtype, ...] = get_args(Dtype)
Likeness = Literal["random", "outliers", "tails", "tied", "massive", "tonal"]
LIKENESSES: tuple[Likeness, ...] = get_args(Likeness)
"""What the weights have in common with trained ones, to try a quantisation on. random: nothing. outliers: input
channels far larger than the others, behind norms that are as much smaller (arXiv 2208.07339, 2211.10438). tails: heavy
tails (arXiv 1810.01075), and rows with very different norms. tied: stop logits that are large and almost equal
(quantised only if a row of the stop head has more than 1024 weights).
massive: activations hundreds of times larger in a few channels of each patch's first position, and of the first one of
speech (arXiv 2402.17762). tonal: a constant in channels of the decoder, of which transposed convolutions make no tones
only because the taps of each phase have the same sum (arXiv 2010.14356)."""

VOCABULARY = 512

_SPECIAL_TOKENS = {
    0: "<unk>",
    1: "<s>",
    2: "</s>",
    AUDIO_START: "<|audio_start|>",
    AUDIO_END: "<|audio_end|>",
    REFERENCE_START: "<|audio_prompt_start|>",
    REFERENCE_END: "<|audio_prompt_end|>",
}
_FIRST_BYTE_TOKEN = 105
_CHARACTERS = "▁" + "".join(chr(code) for code in range(ord("!"), ord("~") + 1))
_CHINESE = "你好世界今天气很，。"
# Merges in order of rank. Upstream splits the merged Chinese words into single characters again.
_MERGES = (
    *(("▁", "t"), ("h", "e"), ("l", "l"), ("▁t", "he"), ("o", "u")),
    *(("你", "好"), ("世", "界"), ("今", "天")),
)


def presets() -> dict[str, dict[str, Any]]:
    """`config.json` documents by name: tiny ones, and "0.5b", "1.5" and "2" with the sizes of published checkpoints."""
    rates_of_2 = {"out_sample_rate": 48000, "sr_bin_boundaries": [20000, 30000, 40000]}
    # The rope factors of 1.5 are assumed to be those of 0.5B.
    small_factors = _logistic(32, 0.85382356, 50.0, 2.667)
    large_factors = _logistic(64, 0.915773467047734, 31.105949332194012, 5.334)
    small = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24}
    large = {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28, "kv_channels": 128}
    return {
        # Like 1.5.
        "tiny": _tiny("voxcpm", _tiny_lm(16), {"encoder_rates": [2, 3, 7], "decoder_rates": [7, 3, 2]}),
        # Unusual sizes.
        "tiny-kv": _tiny(
            "voxcpm",
            _tiny_lm(24, max_position_embeddings=1024, use_mup=True, num_key_value_heads=1, kv_channels=24),
            {"encoder_rates": [2, 5, 4], "decoder_rates": [4, 5, 2], "depthwise": False},
            {"kv_channels": 24},
            patch_size=4,
        ),
        # Like VoxCPM2.
        "tiny-2": _tiny(
            "voxcpm2",
            _tiny_lm(16, kv_channels=16),
            {"encoder_rates": [2, 5, 4], "decoder_rates": [5, 4, 3, 2], **rates_of_2},
            {"kv_channels": 16},
            patch_size=4,
            residual_lm_no_rope=True,
        ),
        "0.5b": _published(
            "voxcpm", _published_lm(small_factors, **small), {"num_layers": 4}, {}, max_length=4096
        ),
        "1.5": _published(
            "voxcpm",
            _published_lm(small_factors, **small),
            {"num_layers": 8},
            {
                "latent_dim": 64,
                "encoder_dim": 64,
                "encoder_rates": [2, 3, 6, 7, 7],
                "decoder_dim": 2048,
                "decoder_rates": [7, 7, 6, 3, 2],
                "sample_rate": 44100,
            },
            patch_size=4,
            residual_lm_num_layers=8,
        ),
        "2": _published(
            "voxcpm2",
            _published_lm(large_factors, **large),
            {"num_layers": 12, "kv_channels": 128},
            {
                "latent_dim": 64,
                "encoder_dim": 128,
                "encoder_rates": [2, 5, 8, 8],
                "decoder_dim": 2048,
                "decoder_rates": [8, 6, 5, 2, 2, 2],
                "sample_rate": 16000,
                **rates_of_2,
            },
            patch_size=4,
            residual_lm_num_layers=8,
            scalar_quantization_latent_dim=512,
            residual_lm_no_rope=True,
        ),
    }


def _config(
    generation: str, lm: dict[str, Any], local: dict[str, Any], vae: dict[str, Any], **sizes: Any
) -> dict[str, Any]:
    """A document. local: sizes of the local encoder and of the local DiT."""
    cfm = {"sigma_min": 1e-06, "solver": "euler", "t_scheduler": "log-norm", "inference_cfg_rate": 2.0}
    return {
        "architecture": generation,
        "lm_config": lm,
        "scalar_quantization_scale": 9,
        "encoder_config": local,
        "dit_config": {**local, "cfm_config": cfm},
        "audio_vae_config": vae,
        "dtype": "bfloat16",
        **sizes,
    }


def _lm(
    long_factor: Sequence[float], short_factor: Sequence[float], positions: int, sizes: dict[str, Any]
) -> dict[str, Any]:
    """`lm_config`. The two lists of factors have one element per rotated pair of a head's dimensions."""
    rope_scaling = {"type": "longrope", "long_factor": [*long_factor], "short_factor": [*short_factor]}
    return {
        "bos_token_id": 1,
        "eos_token_id": 2,
        "max_position_embeddings": positions,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-05,
        "rope_theta": 10000,
        "rope_scaling": {**rope_scaling, "original_max_position_embeddings": positions},
        "use_mup": False,
        "scale_emb": 12,
        "dim_model_base": 256,
        "scale_depth": 1.4,
        **sizes,
    }


def _tiny_lm(head_dim: int, **sizes: Any) -> dict[str, Any]:
    long_factor = [1.0 + 0.5 * pair for pair in range(head_dim // 2)]
    short_factor = [1.0 + 0.05 * pair for pair in range(head_dim // 2)]
    usual = {"hidden_size": 64, "intermediate_size": 160, "num_attention_heads": 4, "num_hidden_layers": 2}
    return _lm(long_factor, short_factor, 512, {**usual, "vocab_size": VOCABULARY, **sizes})


def _tiny(
    generation: str,
    lm: dict[str, Any],
    vae: dict[str, Any],
    local: dict[str, int] | None = None,
    **sizes: Any,
) -> dict[str, Any]:
    usual = {"patch_size": 2, "feat_dim": 16, "residual_lm_num_layers": 1, "max_length": 512, "device": "cpu"}
    return _config(
        generation,
        lm,
        # Upstream accepts a missing kv_channels, but not null.
        {"hidden_dim": 64, "ffn_dim": 128, "num_heads": 4, "num_layers": 2, **(local or {})},
        {"latent_dim": 16, "encoder_dim": 8, "decoder_dim": 64, "sample_rate": 16000, **vae},
        **{**usual, "scalar_quantization_latent_dim": 128, **sizes},
    )


def _published_lm(factors: Sequence[float], **sizes: Any) -> dict[str, Any]:
    return _lm(factors, factors, 32768, {"num_attention_heads": 16, "vocab_size": 73448, **sizes})


def _published(
    generation: str, lm: dict[str, Any], local: dict[str, int], vae: dict[str, Any], **sizes: Any
) -> dict[str, Any]:
    usual = {
        "patch_size": 2,
        "feat_dim": 64,
        "residual_lm_num_layers": 6,
        "max_length": 8192,
        "device": "cuda",
    }
    return _config(
        generation,
        lm,
        {"hidden_dim": 1024, "ffn_dim": 4096, "num_heads": 16, **local},
        vae,
        **{**usual, "scalar_quantization_latent_dim": 256, **sizes},
    )


def _logistic(count: int, low: float, high: float, width: float) -> list[float]:
    """Values on a logistic curve from `low` to `high`: the published rope factors, to the precision of float32."""
    centre = (count - 1) / 2
    return [low + (high - low) / (1 + math.exp((centre - index) / width)) for index in range(count)]


def write_tokenizer(folder: Path) -> Path:
    """Write a small tokenizer in the published form: byte-fallback BPE over characters with Llama's `▁` prefix.

    Ids 0 to 2 and 101 to 104 are the special tokens; some tokens are words of several Chinese characters.
    Returns the folder.
    """
    from tokenizers import AddedToken, Tokenizer, models, normalizers

    tokenizer = Tokenizer(
        models.BPE(_vocabulary(), [*_MERGES], unk_token="<unk>", fuse_unk=True, byte_fallback=True)  # noqa: S106
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in _SPECIAL_TOKENS.values()]
    )
    specials = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    config = {"tokenizer_class": "LlamaTokenizerFast", "add_bos_token": True, **specials, "legacy": True}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(tokenizer.to_str(pretty=False), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "special_tokens_map.json").write_text(json.dumps(specials), encoding="utf-8")
    return folder


def _vocabulary() -> dict[str, int]:
    """Ids by token: characters around the special tokens, then bytes, Chinese characters and merged tokens."""
    tokens = [*_CHARACTERS]
    ids = dict(zip(tokens, range(3, AUDIO_START), strict=False))
    rest = [*tokens[len(ids) :], *(f"<0x{byte:02X}>" for byte in range(256)), *_CHINESE]
    rest += [first + second for first, second in _MERGES]
    ids |= {token: index for index, token in enumerate(rest, start=_FIRST_BYTE_TOKEN)}
    return {token: index for index, token in _SPECIAL_TOKENS.items()} | ids
