"""Sizes of the trained model, from the config.json in this folder, which is also the checkpoint's."""

from __future__ import annotations

import json
import math
from importlib import resources
from typing import Any

CONFIG: dict[str, Any] = json.loads(
    resources.files(__package__).joinpath("config.json").read_text(encoding="utf-8")
)
HOP: int = math.prod(CONFIG["audio_vae_config"]["encoder_rates"])
"""Samples per latent frame."""
PATCH: int = CONFIG["patch_size"]
"""Latent frames per patch, which is one step of the language model."""
LATENT: int = CONFIG["feat_dim"]
SAMPLE_RATE: int = CONFIG["audio_vae_config"]["sample_rate"]
"""Hz"""
