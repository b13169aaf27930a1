"""Compression recipes as data: which weights a precision compresses, and to which format.

A weight is a matrix or a convolution's kernel of more than MIN_ELEMENTS elements. Norms, biases, Snake's alphas and
rotary tables are never compressed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from voxcpm_constants.architecture import Architecture
from voxcpm_constants.errors import InputError
from voxcpm_constants.step_models import Precision
from voxcpm_constants.targets import TARGETS, Target
from voxcpm_conversion.modules.voxcpm import EMBED_TOKENS, expected_shapes

Format = Literal["fp16", "int8", "int4"]
"""int8: one scale per output channel, no offset. int4: a scale and an offset per BLOCK weights of a row."""

MIN_ELEMENTS = 2048
BLOCK = 32


@dataclass(frozen=True)
class WeightRule:
    """The format of some weights. Names are torch's, with underscores instead of dots."""

    step_model: str
    """A glob pattern for names of step models."""
    weight: str
    """A glob pattern for names of weights."""
    format: Format


@dataclass(frozen=True)
class Recipe:
    """The formats of one precision: that of the first rule that matches a weight, else the default."""

    target: Target
    """The earliest target that supports the formats."""
    default: Format
    rules: tuple[WeightRule, ...] = ()


RECIPES: dict[Precision, Recipe] = {
    "int8": Recipe("macOS14", "int8"),
    "int4": Recipe(
        "macOS15",
        "int8",
        (
            # The DiT runs nine times per patch, and its errors accumulate over the steps; 8 bits are also faster.
            WeightRule("locdit_*", "*", "int8"),
            # These are a tenth of a layer with grouped queries, but cause a third of its noise (TRIALS.md).
            WeightRule("*", "*_self_attn_[kvo]_proj_weight", "int8"),
            WeightRule("*", "*_layers_*_weight", "int4"),
        ),
    ),
}
"""The recipe of each compressed precision; fp16 and fp32 are not compressed."""


def chosen_format(precision: Precision, step_model: str, weight: str, shape: tuple[int, ...]) -> Format:
    """The format of a weight of this name and shape; int8 instead of int4 if a row is not a multiple of BLOCK."""
    recipe = RECIPES[precision]
    for rule in recipe.rules:
        if fnmatchcase(step_model, rule.step_model) and fnmatchcase(weight, rule.weight):
            in_blocks = len(shape) == 2 and shape[1] % BLOCK == 0
            return rule.format if rule.format != "int4" or in_blocks else "int8"
    return recipe.default


def check_target(precisions: Iterable[Precision], target: Target) -> None:
    """Check that a target supports the precisions. Raises InputError for a precision that needs a later target."""
    for precision in precisions:
        lowest = RECIPES[precision].target if precision in RECIPES else TARGETS[0]
        if TARGETS.index(target) < TARGETS.index(lowest):
            raise InputError(
                f"--precision {precision} needs --target {lowest.lower()}, got {target.lower()}: "
                "its weights are quantised in blocks"
            )


# int4 packages have a third of their weights in 8 bits, and scales for the others.
_BYTES_PER_WEIGHT: dict[Precision, float] = {"fp32": 4, "fp16": 2, "int8": 1, "int4": 0.75}


def check_split(gigabytes: float) -> None:
    """Validate a package size. Raises InputError unless it is finite and above zero."""
    if not (math.isfinite(gigabytes) and gigabytes > 0):
        raise InputError(f"--split-gigabytes {gigabytes:g}: expected a finite size above 0")


def base_lm_parts(a: Architecture, precisions: Sequence[Precision], gigabytes: float) -> int:
    """Number of packages for the base LM, each below `gigabytes` in the largest of the precisions."""
    weights = sum(
        math.prod(shape)
        for name, shape in expected_shapes(a).items()
        if name.startswith("base_lm.") and name != EMBED_TOKENS
    )
    largest = max(_BYTES_PER_WEIGHT[precision] for precision in precisions)
    layers = a.base_lm.num_layers
    # Minimum before rounding: a huge size means infinitely many layers.
    layers_per_package = math.floor(min(layers, gigabytes * 1e9 / (weights * largest / layers)))
    return math.ceil(layers / max(1, layers_per_package))
