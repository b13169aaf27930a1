"""Forms of a conversion's result: checks before PyTorch is imported, and the optional rooms that write some."""

from __future__ import annotations

import importlib
from types import ModuleType

from voxcpm_constants.bounds import MAX_EULER_STEPS, MIN_SOLVER_STEPS
from voxcpm_constants.errors import InputError

LAYOUTS = {"bundle": "", "fluid": "fluid.layout"}
"""Layouts of a folder with step models, the first one our own, and the optional modules that write the others."""


def optional_module(name: str, option: str) -> ModuleType:
    """A module of an optional room. Raises InputError, which names the option that needs it, if the room is missing."""
    room = name.partition(".")[0]
    try:
        return importlib.import_module(f"voxcpm_conversion.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"voxcpm_conversion.{room}":
            raise
        raise InputError(f"{option}: this installation lacks {room}; reinstall voxcpm-coreml") from None


def check_solver_steps(steps: int) -> None:
    """Check the Euler steps of `locdit_solve`, 0 for none. Raises InputError for a number out of range."""
    if steps and not MIN_SOLVER_STEPS <= steps <= MAX_EULER_STEPS:
        raise InputError(
            f"--solver-steps {steps}: expected {MIN_SOLVER_STEPS} to {MAX_EULER_STEPS}, or 0 for none"
        )
