"""Hides Core ML in every child process of a test on a Mac, unless the test is marked `coreml`."""

from contextlib import suppress
from importlib import import_module
from pathlib import Path

with suppress(ImportError):
    import_module("voxcpm_constants.macos").SYSTEM_VERSION_FILE = Path(__file__).with_name(
        "SystemVersion.plist"
    )
