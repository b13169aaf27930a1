"""Memory: how much of it this process has, and an amount as people write it."""

from __future__ import annotations

import re

import psutil

from voxcpm_runtime import InputError

_UNITS = {
    f"{prefix}{form}": factor
    for form, base in (("B", 1000), ("iB", 1024))
    for prefix, factor in zip("KMGT", (base, base**2, base**3, base**4), strict=True)
}


def resident_bytes() -> int:
    """Resident memory of this process in bytes: its own, and what it has mapped of bundles' files and uses."""
    return int(psutil.Process().memory_info().rss)


def bytes_of(text: str, option: str) -> int:
    """The bytes that an amount such as "8GB" or "7.5 GiB" means. Raises InputError, which names the option."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*", text)
    units = {unit.lower(): factor for unit, factor in _UNITS.items()}
    if found is None or found[2].lower() not in units or not float(found[1]):
        raise InputError(f"{option}: expected an amount with its unit, such as 8GB or 512MiB, got {text!r}")
    return round(float(found[1]) * units[found[2].lower()])
