"""What `auto` does where Core ML refuses a step model: the CPU takes its place, then the portable backend."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import NamedTuple

from voxcpm_constants.errors import BundleError
from voxcpm_runtime.backends.step_function import StepFunction

INSTALL_PORTABLE = 'pip install "onnx>=1.17" "onnxruntime>=1.22"'
"""What brings the portable backend; on a Mac the runtime does not require it."""


class Placed(NamedTuple):
    """A step model, and the compute unit that took it; PORTABLE for the portable backend."""

    model: StepFunction
    unit: str


def first_that_loads(
    name: str, units: Iterable[str], load: Callable[[str], StepFunction], advice: str = ""
) -> Placed:
    """A step model on the first unit that takes it, with a warning where that is not the first one.

    load(unit) loads it. Raises a BundleError if none takes it: the first unit's, the units that were tried, and the
    advice, if there is some.
    """
    names = tuple(units)
    refusals: list[BundleError] = []
    for unit in names:
        try:
            model = load(unit)
        except BundleError as error:
            refusals.append(error)
            continue
        if refusals:
            warnings.warn(
                f"{name} runs on {unit} and not on {' or '.join(names[: len(refusals)])} ({refusals[0]}); "
                "voxcpm-coreml doctor finds what is best on this machine",
                stacklevel=2,
            )
        return Placed(model, unit)
    raise BundleError("; ".join(filter(None, (f"{refusals[0]}", f"tried {', '.join(names)}", advice))))
