"""The Mac that this process runs on, if it is one: the only place that asks."""

from __future__ import annotations

import plistlib
from pathlib import Path
from typing import NamedTuple

# Every Mac has this file and no other system does. The tests name another one, so that Core ML's path runs anywhere.
SYSTEM_VERSION_FILE = Path("/System/Library/CoreServices/SystemVersion.plist")
# In the same folder. A Python built on an SDK before macOS 26 is given a SystemVersion.plist that says 16.0, as is
# `platform.mac_ver`, but no other version of this file.
_PLATFORM_VERSION = ".SystemVersionPlatform.plist"


class MacOS(NamedTuple):
    """The version of macOS, such as (15, 5), and its build, such as "24F74", which every update changes."""

    version: tuple[int, ...]
    build: str

    def __str__(self) -> str:
        return f"macOS {'.'.join(map(str, self.version))}"


def macos() -> MacOS | None:
    """The system's version and build; None where this is no Mac."""
    for path in (SYSTEM_VERSION_FILE.with_name(_PLATFORM_VERSION), SYSTEM_VERSION_FILE):
        try:
            described = plistlib.loads(path.read_bytes())
        except FileNotFoundError:
            continue
        version = tuple(int(part) for part in described["ProductVersion"].split("."))
        return MacOS(version, described["ProductBuildVersion"])
    return None
