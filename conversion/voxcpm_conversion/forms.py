"""Forms of a conversion's result that are checked before PyTorch is imported."""

from __future__ import annotations

import importlib
from types import ModuleType

from voxcpm_constants.bounds import MAX_EULER_STEPS, MIN_SOLVER_STEPS
from voxcpm_constants.errors import InputError

OWN_LAYOUT = "bundle"
LAYOUTS = {"fluid": "fluid.layout"}
"""Other layouts of a folder with step models, each the module of an optional room."""


def layout_writer(layout: str) -> ModuleType:
    """The module with `check` and `write` for a layout other than our own. Raises InputError for an unknown one."""
    try:
        return importlib.import_module(f"voxcpm_conversion.{LAYOUTS[layout]}")
    except (KeyError, ModuleNotFoundError) as error:
        if isinstance(error, ModuleNotFoundError) and error.name != f"voxcpm_conversion.{layout}":
            raise
        known = ", ".join((OWN_LAYOUT, *LAYOUTS))
        missing = (
            f"expected one of {known}" if layout not in LAYOUTS else "this installation lacks it; reinstall"
        )
        raise InputError(f"--layout {layout}: {missing}") from None


def check_solver_steps(steps: int) -> None:
    """Check the Euler steps of `locdit_solve`, 0 for none. Raises InputError for a number out of range."""
    if steps and not MIN_SOLVER_STEPS <= steps <= MAX_EULER_STEPS:
        raise InputError(
            f"--solver-steps {steps}: expected {MIN_SOLVER_STEPS} to {MAX_EULER_STEPS}, or 0 for none"
        )
