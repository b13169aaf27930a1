"""Deployment targets, and the form that a step model's package takes for each.

macOS14   one function, `main`, that takes every enumerated length; state is inputs `name` and outputs `name_out`.
macOS15   the LM steps keep their caches as Core ML states and have one function a length, all sharing the weights:
          `decode` for one embedding, `prefill_16` for 16, and so on. The other step models as for macOS14.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from voxcpm_constants.step_models import BASE_LM_STEP, RESIDUAL_LM_STEP, StepModel

Target = Literal["macOS14", "macOS15"]
TARGETS: tuple[Target, ...] = ("macOS14", "macOS15")

MAIN = "main"
"""The only function of a package that has one."""

_WITH_CACHES = (BASE_LM_STEP, RESIDUAL_LM_STEP)


class PackageForm(NamedTuple):
    """functions: name -> what it takes and gives, the one that loads by default first."""

    functions: dict[str, StepModel]
    keeps_state: bool
    """Whether state is Core ML's own; else it goes in and out."""


def package_form(model: StepModel, target: Target) -> PackageForm:
    if target == "macOS14" or model.name not in _WITH_CACHES:
        return PackageForm({MAIN: model}, keeps_state=False)
    if model.chunk_count == 1:
        return PackageForm({MAIN: model}, keeps_state=True)
    names = ("decode" if length == 1 else f"prefill_{length}" for length in model.chunk_lengths)
    return PackageForm({name: model.at(chunk) for chunk, name in enumerate(names)}, keeps_state=True)
