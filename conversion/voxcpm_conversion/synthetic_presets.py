"""Configurations for synthetic checkpoints, and a small tokenizer for them.

The tiny presets have the properties of published configurations in a small size: grouped queries, a head dimension
that is not hidden/heads, long rope factors, odd and even strides.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from voxcpm_constants.special_tokens import AUDIO_END, AUDIO_START, REFERENCE_END, REFERENCE_START

VOCABULARY = 512
_POSITIONS = 512

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
    ("▁", "t"),
    ("h", "e"),
    ("l", "l"),
    ("▁t", "he"),
    ("o", "u"),
    ("你", "好"),
    ("世", "界"),
    ("今", "天"),
)


def _language_model(*, kv_channels: int | None, head_dim: int, **overrides: Any) -> dict[str, Any]:
    long = [1.0 + 0.5 * index for index in range(head_dim // 2)]
    short = [1.0 + 0.05 * index for index in range(head_dim // 2)]
    return {
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_size": 64,
        "intermediate_size": 160,
        "max_position_embeddings": _POSITIONS,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-05,
        "rope_theta": 10000,
        "rope_scaling": {
            "type": "longrope",
            "long_factor": long,
            "short_factor": short,
            "original_max_position_embeddings": _POSITIONS,
        },
        "vocab_size": VOCABULARY,
        "use_mup": False,
        "scale_emb": 12,
        "dim_model_base": 256,
        "scale_depth": 1.4,
        **_kv_channels(kv_channels),
        **overrides,
    }


def _kv_channels(channels: int | None) -> dict[str, int]:
    # Upstream accepts a missing kv_channels, but not null.
    return {} if channels is None else {"kv_channels": channels}


def _config(
    architecture: str, lm: dict[str, Any], vae: dict[str, Any], *, kv_channels: int | None, **overrides: Any
) -> dict[str, Any]:
    local = {"hidden_dim": 64, "ffn_dim": 128, "num_heads": 4, "num_layers": 2, **_kv_channels(kv_channels)}
    cfm = {"sigma_min": 1e-06, "solver": "euler", "t_scheduler": "log-norm", "inference_cfg_rate": 2.0}
    return {
        "architecture": architecture,
        "lm_config": lm,
        "patch_size": 2,
        "feat_dim": 16,
        "residual_lm_num_layers": 1,
        "scalar_quantization_latent_dim": 128,
        "scalar_quantization_scale": 9,
        "encoder_config": local,
        "dit_config": {**local, "cfm_config": cfm},
        "audio_vae_config": {"latent_dim": 16, "encoder_dim": 8, "decoder_dim": 64, **vae},
        "max_length": _POSITIONS,
        "device": "cpu",
        "dtype": "bfloat16",
        **overrides,
    }


def presets() -> dict[str, dict[str, Any]]:
    """`config.json` documents by name: "tiny" (like 1.5), "tiny-kv" (unusual sizes), "tiny-2" (like VoxCPM2)."""
    rates_of_1_5 = {"encoder_rates": [2, 3, 7], "decoder_rates": [7, 3, 2], "sample_rate": 16000}
    long_rope = {**_language_model(kv_channels=24, head_dim=24), "max_position_embeddings": 2 * _POSITIONS}
    rates_of_2 = {
        "encoder_rates": [2, 5, 4],
        "decoder_rates": [5, 4, 3, 2],
        "sample_rate": 16000,
        "out_sample_rate": 48000,
        "sr_bin_boundaries": [20000, 30000, 40000],
    }
    return {
        "tiny": _config(
            "voxcpm", _language_model(kv_channels=None, head_dim=16), rates_of_1_5, kv_channels=None
        ),
        "tiny-kv": _config(
            "voxcpm",
            {**long_rope, "use_mup": True, "num_key_value_heads": 1},
            {
                "encoder_rates": [2, 5, 4],
                "decoder_rates": [4, 5, 2],
                "sample_rate": 16000,
                "depthwise": False,
            },
            kv_channels=24,
            patch_size=4,
        ),
        "tiny-2": _config(
            "voxcpm2",
            _language_model(kv_channels=16, head_dim=16),
            rates_of_2,
            kv_channels=16,
            patch_size=4,
            residual_lm_no_rope=True,
        ),
    }


def write_tokenizer(folder: Path) -> dict[str, Path]:
    """Write a small tokenizer in the published form: byte-fallback BPE over characters with Llama's `▁` prefix.

    Ids 0 to 2 and 101 to 104 are the special tokens; some tokens are words of several Chinese characters.
    Returns the paths of `tokenizer.json`, `tokenizer_config.json` and `special_tokens_map.json` by name.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

    tokenizer = Tokenizer(
        models.BPE(
            _vocabulary(), list(_MERGES), unk_token=_SPECIAL_TOKENS[0], fuse_unk=True, byte_fallback=True
        )
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in _SPECIAL_TOKENS.values()]
    )
    folder.mkdir(parents=True, exist_ok=True)
    specials = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    config = {
        "tokenizer_class": "LlamaTokenizerFast",
        "add_bos_token": True,
        "add_eos_token": False,
        **specials,
    }
    documents = {
        "tokenizer.json": tokenizer.to_str(pretty=False),
        "tokenizer_config.json": json.dumps(
            {**config, "legacy": True, "clean_up_tokenization_spaces": False, "model_max_length": _POSITIONS}
        ),
        "special_tokens_map.json": json.dumps(specials),
    }
    for name, text in documents.items():
        (folder / name).write_text(text, encoding="utf-8")
    return {name: folder / name for name in documents}


def _vocabulary() -> dict[str, int]:
    """Ids by token: characters around the special tokens, then bytes, Chinese characters and merged tokens."""
    tokens = [*_CHARACTERS]
    ids = dict(zip(tokens, range(3, AUDIO_START), strict=False))
    rest = [*tokens[len(ids) :], *(f"<0x{byte:02X}>" for byte in range(256)), *_CHINESE]
    rest += [first + second for first, second in _MERGES]
    ids |= {token: index for index, token in enumerate(rest, start=_FIRST_BYTE_TOKEN)}
    return {token: index for index, token in _SPECIAL_TOKENS.items()} | ids
