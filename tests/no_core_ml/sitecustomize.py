"""Runs first in every child process of a test on a Mac, unless it is marked `coreml`: Core ML is not there."""

from contextlib import suppress
from importlib import import_module
from pathlib import Path

with suppress(ImportError):
    import_module("voxcpm_constants.macos").SYSTEM_VERSION_FILE = Path(__file__).with_name(
        "SystemVersion.plist"
    )
