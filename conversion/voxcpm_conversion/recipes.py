"""Which weights a precision compresses, and how: data.

A weight is a matrix or a convolution's kernel of more than SMALLEST elements. Norms, biases, Snake's alphas and rotary
tables stay as they are, whatever the recipe.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from voxcpm_constants.errors import InputError
from voxcpm_constants.step_models import LOCDIT_STEP, Precision
from voxcpm_constants.targets import TARGETS, Target

Format = Literal["fp16", "int8", "int4"]
"""int8: a scale an output channel, zero is zero. int4: a scale and an offset for each BLOCK weights of a row."""

SMALLEST = 2048
BLOCK = 32


@dataclass(frozen=True)
class Rule:
    """Weights of a step model, by the names that they have in its program (torch's, dots as underscores)."""

    step_model: str
    """A pattern, as of a shell."""
    weight: str
    """The same."""
    format: Format


@dataclass(frozen=True)
class Recipe:
    """A weight has the format of the first rule that names it, else the default."""

    target: Target
    """The first that can hold the formats."""
    default: Format
    rules: tuple[Rule, ...] = ()


RECIPES: dict[Precision, Recipe] = {
    "int8": Recipe("macOS14", "int8"),
    "int4": Recipe(
        "macOS15",
        "int8",
        (
            # It runs nine times a patch, and its errors add up on the way from noise; with 8 bits it is faster, too.
            Rule(LOCDIT_STEP, "*", "int8"),
            # A tenth of a layer where queries share keys, and a third of its noise (TRIALS.md).
            Rule("*", "*_self_attn_[kvo]_proj_weight", "int8"),
            Rule("*", "*_layers_*_weight", "int4"),
        ),
    ),
}
"""fp16 and fp32 packages are not compressed."""


def chosen_format(precision: Precision, step_model: str, weight: str, shape: tuple[int, ...]) -> Format:
    """The format of a weight of this name and shape; int8 where a row does not divide into blocks."""
    recipe = RECIPES[precision]
    for rule in recipe.rules:
        if fnmatchcase(step_model, rule.step_model) and fnmatchcase(weight, rule.weight):
            in_blocks = len(shape) == 2 and shape[1] % BLOCK == 0
            return rule.format if rule.format != "int4" or in_blocks else "int8"
    return recipe.default


def check_target(precisions: Iterable[Precision], target: Target) -> None:
    """Raises InputError for a precision that needs a later target."""
    for precision in precisions:
        lowest = RECIPES[precision].target if precision in RECIPES else TARGETS[0]
        if TARGETS.index(target) < TARGETS.index(lowest):
            raise InputError(
                f"--precision {precision} needs --target {lowest.lower()}, got {target.lower()}: "
                "its weights are in blocks"
            )
