"""What `auto` does where Core ML refuses a step model: the CPU takes its place, then the portable backend."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable

from voxcpm_constants.errors import BundleError
from voxcpm_runtime.backends.compute_units import PORTABLE
from voxcpm_runtime.backends.machine import backends
from voxcpm_runtime.backends.step_function import StepFunction

INSTALL_PORTABLE = 'pip install "onnx>=1.17" "onnxruntime>=1.22"'
"""What brings the portable backend; on a Mac the runtime does not require it."""


def first_that_loads(name: str, units: Iterable[str], load: Callable[[str], StepFunction]) -> StepFunction:
    """A step model on the first unit that takes it, with a warning where that is not the first one.

    load(unit) loads it. Raises the BundleError of the first unit if none takes it.
    """
    first, *_ = names = tuple(units)
    refusals: list[BundleError] = []
    for unit in names:
        try:
            model = load(unit)
        except BundleError as error:
            refusals.append(error)
            continue
        if refusals:
            warnings.warn(
                f"{name} runs on {unit}, as {first} does not take it ({refusals[0]}); "
                "voxcpm-coreml doctor finds what is best on this machine",
                stacklevel=2,
            )
        return model
    hint = "" if PORTABLE in backends() else f" ({INSTALL_PORTABLE})"
    raise BundleError(f"{refusals[0]}{hint}")
