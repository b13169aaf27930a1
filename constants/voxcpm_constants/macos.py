"""The Mac that this process runs on, if it is one: the only place that asks."""

from __future__ import annotations

import plistlib
from pathlib import Path
from typing import NamedTuple

# Every Mac has this file and no other system does. The tests name another one, so that Core ML's path runs anywhere.
SYSTEM_VERSION_FILE = Path("/System/Library/CoreServices/SystemVersion.plist")


class MacOS(NamedTuple):
    """The version of macOS, such as (15, 5), and its build, such as "24F74", which every update changes."""

    version: tuple[int, ...]
    build: str

    def __str__(self) -> str:
        return f"macOS {'.'.join(map(str, self.version))}"


def macos() -> MacOS | None:
    """The system's version and build; None where this is no Mac."""
    try:
        described = plistlib.loads(SYSTEM_VERSION_FILE.read_bytes())
    except FileNotFoundError:
        return None
    version = tuple(int(part) for part in described["ProductVersion"].split("."))
    return MacOS(version, described["ProductBuildVersion"])
