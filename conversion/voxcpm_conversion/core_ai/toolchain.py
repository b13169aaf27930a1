"""Core AI's packages for PyTorch, without their output: prints, progress bars and warnings."""

from __future__ import annotations

import importlib
import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from types import ModuleType

from voxcpm_constants.errors import InputError

INSTALL = "pip install 'voxcpm-coreml[convert-coreai]'"
TOOLS = ("coreai-core", "coreai-torch", "coreai-opt", "torch", "numpy", "voxcpm-coreml")
"""The distributions whose versions determine a program."""

_NOISY_LOGGERS = ("torch", "torchao", "coreai_opt", "coreai_torch")


def check_toolchain() -> None:
    """Raises InputError, with what to install, if Core AI's converter is not installed or does not run here."""
    import_module("coreai_torch")


def import_module(name: str) -> ModuleType:
    """Import a module of Core AI's packages without its warnings. Raises InputError if it is not installed."""
    with quiet():
        try:
            return importlib.import_module(name)
        except ImportError:
            raise InputError(
                f"--target macos27 needs Core AI's converter: {INSTALL} (Python 3.11 or newer, on Linux x86-64 or a "
                "Mac with Apple silicon)"
            ) from None


@contextmanager
def quiet() -> Iterator[None]:
    """A context in which Core AI's and PyTorch's export print, warn and log nothing."""
    loggers = [logging.getLogger(name) for name in _NOISY_LOGGERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
