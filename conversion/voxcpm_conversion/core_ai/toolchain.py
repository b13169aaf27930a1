"""Core AI's packages for PyTorch, without their output: prints, progress bars and warnings."""

from __future__ import annotations

import importlib
import importlib.util
import io
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from types import ModuleType

from voxcpm_constants.errors import InputError, install_command
from voxcpm_conversion.core_ml.toolchain import silenced

_MISSING = (
    f"--target macos27 needs Core AI's converter: {install_command('convert-coreai')} "
    "(Python 3.11 or newer, on Linux x86-64 or a Mac with Apple silicon)"
)
TOOLS = ("coreai-core", "coreai-torch", "coreai-opt", "torch", "numpy", "voxcpm-coreml")
"""The distributions whose versions determine a program."""


def check_toolchain() -> None:
    """Raises InputError, with what to install, if Core AI's converter is not installed or does not run here."""
    import_module("coreai_torch")
    # Importing this one takes seconds, and only compressed precisions need it; its version is recorded for all.
    if importlib.util.find_spec("coreai_opt") is None:
        raise InputError(_MISSING)


def import_module(name: str) -> ModuleType:
    """Import a module of Core AI's packages without its warnings. Raises InputError if it is not installed."""
    with quiet():
        try:
            return importlib.import_module(name)
        except ImportError:
            raise InputError(_MISSING) from None


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the prints, warnings and logs of Core AI's and PyTorch's export."""
    with silenced(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        yield
