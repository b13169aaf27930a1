"""Seeded synthetic checkpoints in upstream's layout, of any size, with activations of a trained model's scale.

Every weight is drawn by its own name and the seed, so its values depend neither on the order of writing nor on the
other weights, and one weight at a time is in memory. The gains below follow from the shapes alone: a unit-variance
input to each layer comes out at the stated scale. What comes out of such a checkpoint is noise, not speech.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from voxcpm_constants.architecture import Architecture
from voxcpm_constants.errors import CheckpointError

from voxcpm_conversion.checkpoint import CONFIG_FILE, MODEL_FILES, TOKENIZER_COMPANIONS, TOKENIZER_FILE
from voxcpm_conversion.checkpoint import VAE_FILES, VAE_PREFIX
from voxcpm_conversion.modules.voxcpm import expected_shapes
from voxcpm_conversion.weight_files import Shape

Dtype = Literal["bfloat16", "float16", "float32"]
_DTYPES: dict[str, torch.dtype] = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
_SAFETENSORS_NAMES = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32", torch.int32: "I32"}

# Trained language models carry a few channels far above the rest, which is what strains fp16 and int8.
_OUTLIER = 8.0
_CHANNELS_PER_OUTLIER = 256

# Root mean square of Snake's output for unit-variance input: sqrt(1 + E[sin⁴]) with alpha = 1.
_SNAKE_RMS = 1.15
_TANH_RMS = 0.63
_SILU_RMS = 0.6
