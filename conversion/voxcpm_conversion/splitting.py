"""How many packages a base LM needs whose weights are too large for one."""

from __future__ import annotations

import math
from collections.abc import Sequence

from voxcpm_constants.architecture import Architecture
from voxcpm_constants.errors import InputError
from voxcpm_constants.step_models import Precision
from voxcpm_conversion.modules.voxcpm import EMBED_TOKENS, expected_shapes

# int4 packages have a third of their weights in 8 bits, and scales with the others.
_BYTES_OF_A_WEIGHT: dict[Precision, float] = {"fp32": 4, "fp16": 2, "int8": 1, "int4": 0.75}


def check_split(gigabytes: float) -> None:
    """Check the size that packages may have. Raises InputError for one that is not finite or not above zero."""
    if not (math.isfinite(gigabytes) and gigabytes > 0):
        raise InputError(f"--split-gigabytes {gigabytes:g}: expected a finite size above 0")


def base_lm_parts(a: Architecture, precisions: Sequence[Precision], gigabytes: float) -> int:
    """The number of packages that hold the base LM in the largest of the precisions, each below `gigabytes`.

    Raises InputError for a size that is not finite or not above zero.
    """
    check_split(gigabytes)
    weights = sum(
        math.prod(shape)
        for name, shape in expected_shapes(a).items()
        if name.startswith("base_lm.") and name != EMBED_TOKENS
    )
    largest = max(_BYTES_OF_A_WEIGHT[precision] for precision in precisions)
    layers = a.base_lm.num_layers
    # The least of both before rounding: a huge size is infinitely many layers.
    layers_in_one = math.floor(min(layers, gigabytes * 1e9 / (weights * largest / layers)))
    return math.ceil(layers / max(1, layers_in_one))
