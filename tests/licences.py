"""The licences of the packages that are installed for this one; `python tests/licences.py` prints a table.

Given a report by pip, it prints the table of what is in the report and not installed (pip 23.2 leaves
licence expressions out, 26.3 has them): `pip install --dry-run --ignore-installed --report FILE ".[ray,train,cuda]"`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

ROOT = "voxcpm-coreml"
# Installed by `make` without what they require.
ALSO = ("voxcpm", "Resemblyzer")
# Their metadata names none: read from the licence files that are in their wheels.
BY_FILE = {"atheris": "Apache-2.0", "axe-playwright-python": "MIT", "torchao": "BSD-3-Clause"}
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
    classifiers = metadata.get_all("Classifier") or []
    return _said(metadata["Name"], metadata.get("License-Expression"), classifiers, metadata.get("License"))


def _said(name: str, expression: str | None, all_classifiers: list[str], text: str | None) -> str:
    if expression:
        return expression
    classifiers = [c.rpartition(" :: ")[2] for c in all_classifiers if c.startswith("License ::")]
    said = (text or "").strip()
    if classifiers and classifiers != ["OSI Approved"]:
        return ", ".join(classifiers)
    if said and "\n" not in said and len(said) <= _LONGEST and said != "UNKNOWN":
        return said
    return BY_FILE.get(normalized(name), "unknown")


def table() -> list[str]:
    """The table: a row per licence."""
    by_licence: dict[str, list[str]] = {}
    for name, package in dependencies().items():
        said = licence(package)
        by_licence.setdefault(SPELLINGS.get(said, said), []).append(name)
    rows = [f"| {said} | {', '.join(names)} |" for said, names in sorted(by_licence.items())]
    return ["| licence | packages |", "|---|---|", *rows]


def table_of_report(report: dict[str, Any]) -> list[str]:
    """The table of what is in a report by pip and not installed: a row per licence and extras."""
    packages = {normalized(one["metadata"]["name"]): one["metadata"] for one in report["install"]}
    extras = {extra: _brought(packages, extra) for extra in packages[ROOT]["provides_extra"]}
    by_licence: dict[tuple[str, str], list[str]] = {}
    for name, metadata in sorted(packages.items()):
        if name != ROOT and name not in dependencies():
            said = _said(
                name,
                metadata.get("license_expression"),
                metadata.get("classifier", []),
                metadata.get("license"),
            )
            by = ", ".join(extra for extra in NOT_INSTALLED if name in extras[extra])
            by_licence.setdefault((SPELLINGS.get(said, said), by), []).append(name)
    rows = [f"| {said} | {', '.join(names)} | {by} |" for (said, by), names in sorted(by_licence.items())]
    return ["| licence | packages | extra |", "|---|---|---|", *rows]


def _brought(packages: Mapping[str, Any], extra: str) -> set[str]:
    """The packages of a report that one extra of this package brings, directly or not."""
    waiting, seen = [(ROOT, frozenset({extra}))], set()
    while waiting:
        name, wanted = waiting.pop()
        if (name, wanted) in seen or name not in packages:
            continue
        seen.add((name, wanted))
        for line in packages[name].get("requires_dist", []):
            requirement = Requirement(line)
            asked = requirement.marker is None or any(
                requirement.marker.evaluate({"extra": one}) for one in wanted | {""}
            )
            if asked:
                waiting.append((normalized(requirement.name), frozenset(requirement.extras)))
    return {name for name, _ in seen}


if __name__ == "__main__":
    lines = table_of_report(json.loads(Path(sys.argv[1]).read_text())) if len(sys.argv) > 1 else table()
    sys.stdout.write("\n".join(lines) + "\n")
