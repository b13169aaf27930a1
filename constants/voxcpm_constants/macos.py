"""The version and build of macOS."""

from __future__ import annotations

import plistlib
from pathlib import Path
from typing import NamedTuple

# Only macOS has this file. Tests replace it, so that the code for Core ML runs anywhere.
SYSTEM_VERSION_FILE = Path("/System/Library/CoreServices/SystemVersion.plist")
# In the same folder. A Python built with an SDK before macOS 26 sees a SystemVersion.plist of 16.0 (as does
# `platform.mac_ver`), but the real version in this file.
_PLATFORM_VERSION = ".SystemVersionPlatform.plist"


class MacOS(NamedTuple):
    """The version of macOS, such as (15, 5), and its build, such as "24F74", which changes with every update."""

    version: tuple[int, ...]
    build: str

    def __str__(self) -> str:
        return f"macOS {'.'.join(map(str, self.version))}"


def macos() -> MacOS | None:
    """The system's version and build; None if it is not macOS."""
    for path in (SYSTEM_VERSION_FILE.with_name(_PLATFORM_VERSION), SYSTEM_VERSION_FILE):
        try:
            described = plistlib.loads(path.read_bytes())
        except FileNotFoundError:
            continue
        version = tuple(int(part) for part in described["ProductVersion"].split("."))
        return MacOS(version, described["ProductBuildVersion"])
    return None
