"""Deployment targets, and the form of a step model's package for each of them.

macOS14   one function, `main`, that accepts every enumerated length; state is inputs `name` and outputs `name_out`.
macOS15   the caches of the LM steps are Core ML states, and these packages have one function for each length, which
          share the weights: `decode` for one embedding, `prefill_16` for 16, and so on. The other step models have
          the same form as for macOS14.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from voxcpm_constants.step_models import BASE_LM_STEP, RESIDUAL_LM_STEP, StepModel

Target = Literal["macOS14", "macOS15"]
TARGETS: tuple[Target, ...] = ("macOS14", "macOS15")
OLDEST_MACOS: dict[Target, int] = {"macOS14": 14, "macOS15": 15}
"""The oldest major version of macOS that opens packages of a target."""

MAIN = "main"
"""Name of the function in a package that has only one."""

_WITH_CACHES = (BASE_LM_STEP, RESIDUAL_LM_STEP)


class PackageForm(NamedTuple):
    """The functions of a package by name, the default one first, and how they handle state."""

    functions: dict[str, StepModel]
    keeps_state: bool
    """Whether the caches are Core ML states; otherwise they are inputs and outputs."""


def package_form(model: StepModel, target: Target) -> PackageForm:
    """The form of a step model's package for a deployment target."""
    if target == "macOS14" or model.name not in _WITH_CACHES:
        return PackageForm({MAIN: model}, keeps_state=False)
    if model.chunk_count == 1:
        return PackageForm({MAIN: model}, keeps_state=True)
    names = ("decode" if length == 1 else f"prefill_{length}" for length in model.chunk_lengths)
    return PackageForm({name: model.at(chunk) for chunk, name in enumerate(names)}, keeps_state=True)
