"""The licences of the packages that are installed for this one; `python tests/licences.py` prints a table."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from packaging.requirements import Requirement

ROOT = "voxcpm-coreml"
# Installed by `make` without what they require.
ALSO = ("voxcpm", "Resemblyzer")
# Their metadata names none: read from the licence files that are in their wheels.
BY_FILE = {"axe-playwright-python": "MIT", "torchao": "BSD-3-Clause"}
NOT_INSTALLED = ("cuda", "ray", "train")
"""Extras that the tests' environment does not have."""
SPELLINGS = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "Apache 2.0 License": "Apache-2.0",
    "Apache Software License": "Apache",
    "BSD License": "BSD",
    "GNU Library or Lesser General Public License (LGPL)": "LGPL",
    "GPLv2": "GPL-2.0",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "MIT License, Apache Software License": "Apache, MIT",
    "Apache Software License, MIT License": "Apache, MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}
"""What metadata says → the same licence as the table spells it."""
_LONGEST = 40


def normalized(name: str) -> str:
    """A package's name in the form that all spellings share."""
    return re.sub(r"[-_.]+", "-", name).lower()


def dependencies() -> dict[str, Distribution]:
    """Every installed package that this one requires, with all its extras, directly or not."""
    found: dict[str, Distribution] = {}
    extras = distribution(ROOT).metadata.get_all("Provides-Extra") or []
    waiting = [(ROOT, frozenset(extras)), *((name, frozenset()) for name in ALSO)]
    seen = set()
    while waiting:
        name, wanted = waiting.pop()
        if (normalized(name), wanted) in seen:
            continue
        seen.add((normalized(name), wanted))
        try:
            package = distribution(name)
        except PackageNotFoundError:
            continue
        if normalized(name) != ROOT:
            found[normalized(name)] = package
        if name not in ALSO:
            waiting += _required(package, wanted)
    return dict(sorted(found.items()))


def _required(package: Distribution, extras: frozenset[str]) -> Iterator[tuple[str, frozenset[str]]]:
    for line in package.requires or ():
        requirement = Requirement(line)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras | {""}):
            yield requirement.name, frozenset(requirement.extras)


def licence(package: Distribution) -> str:
    """What a package's metadata says: the expression, the classifiers, or a short text; or what its file says."""
    metadata = package.metadata
    if expression := metadata.get("License-Expression"):
        return str(expression)
    classifiers = [c for c in metadata.get_all("Classifier") or [] if c.startswith("License ::")]
    names = [c.rpartition(" :: ")[2] for c in classifiers]
    said = (metadata.get("License") or "").strip()
    if names and names != ["OSI Approved"]:
        return ", ".join(names)
    if said and "\n" not in said and len(said) <= _LONGEST and said != "UNKNOWN":
        return said
    return BY_FILE.get(normalized(metadata["Name"]), "unknown")


def table() -> list[str]:
    """The table: a row per licence."""
    by_licence: dict[str, list[str]] = {}
    for name, package in dependencies().items():
        said = licence(package)
        by_licence.setdefault(SPELLINGS.get(said, said), []).append(name)
    rows = [f"| {said} | {', '.join(names)} |" for said, names in sorted(by_licence.items())]
    return ["| licence | packages |", "|---|---|", *rows]


if __name__ == "__main__":
    sys.stdout.write("\n".join(table()) + "\n")
