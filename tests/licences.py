"""Licences of the installed dependencies; `python tests/licences.py` prints a table."""

import re
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from packaging.requirements import Requirement

ROOT = "voxcpm-coreml"
# Installed by `make` without their dependencies.
ALSO = ("voxcpm", "Resemblyzer", "distillmos", "speechmos", "swift-f0", "xls-r-sqa")
# Not in their metadata: read from the licence files in their wheels.
BY_FILE = {"axe-playwright-python": "MIT", "torchao": "BSD-3-Clause"}
NOT_INSTALLED = ("ray", "train")
"""Extras that are not in the tests' environment."""
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
"""Licence in metadata → its spelling in the table."""
_LONGEST = 40


def normalized(name: str) -> str:
    """A package's normalised name."""
    return re.sub(r"[-_.]+", "-", name).lower()


def dependencies() -> dict[str, Distribution]:
    """Every installed direct and transitive dependency, with all extras."""
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
    """A package's licence: from the expression, classifiers or short text in its metadata, or its file."""
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
    """A table with a row per licence."""
    by_licence: dict[str, list[str]] = {}
    for name, package in dependencies().items():
        said = licence(package)
        by_licence.setdefault(SPELLINGS.get(said, said), []).append(name)
    rows = [f"| {said} | {', '.join(names)} |" for said, names in sorted(by_licence.items())]
    return ["| licence | packages |", "|---|---|", *rows]


if __name__ == "__main__":
    sys.stdout.write("\n".join(table()) + "\n")
