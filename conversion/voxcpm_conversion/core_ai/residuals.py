"""Residual sums of the local transformers with compensation, for half arithmetic.

Each sum of the residual stream and a branch is rounded, and these roundings stay in the stream until its end. In
Kahan's summation ("Further remarks on reducing truncation errors", 1965) what a sum has lost is added to the next
branch. It takes three more additions, all in float16. A compiler that calculates with them as with real numbers finds
that nothing is lost, and what remains is the plain sum.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from torch import Tensor, nn

from voxcpm_conversion.modules.minicpm4 import EVERY, Layer, Rope, Stack, kept


class CompensatedStack(nn.Module):
    """A stack without caches, with the same layers and norm, whose residual sums are compensated."""

    def __init__(self, stack: Stack) -> None:
        super().__init__()
        self.layers, self.norm = stack.layers, stack.norm

    def forward(self, x: Tensor, rope: Rope | None, keep: slice) -> Tensor:
        """What `Stack` returns."""
        lost: Tensor | None = None
        for index, layer in enumerate(cast(Iterable[Layer], self.layers), 1):
            own = keep if index == len(self.layers) else EVERY
            branch, _ = layer.attention_branch(x, rope, keep=own)
            x, lost = compensated_sum(kept(x, own), branch, None if lost is None else kept(lost, own))
            x, lost = compensated_sum(x, layer.mlp_branch(x), lost)
        return self.norm(x)


def compensated_sum(total: Tensor, term: Tensor, lost: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The sum of a total and a term, and what it lacks. lost: what the total lacks; None if it lacks nothing."""
    if lost is not None:
        term = term + lost
    result = total + term
    return result, term - (result - total)


def use_compensated_sums(steps: Iterable[nn.Module]) -> None:
    """Replace the stacks of the local transformers among step modules, in place; step modules may share them.

    The language models have their layers elsewhere, in `CachedStack`.
    """
    for step in steps:
        for parent in list(step.modules()):
            for name, child in list(parent.named_children()):
                if isinstance(child, Stack):
                    setattr(parent, name, CompensatedStack(child))
