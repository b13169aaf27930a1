"""docs/licences.md has every package that is installed for this one, and none whose licence would bind what uses it."""

from __future__ import annotations

import re

import pytest

from documents import REPOSITORY
from licences import dependencies, licence

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


def documented() -> dict[str, str]:
    text = (REPOSITORY / "docs/licences.md").read_text(encoding="utf-8")
    return dict(re.findall(r"^\| ([a-z0-9-]+) \| (.+?) \|$", text, re.MULTILINE))


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

    assert not strict


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("MIT License", {"MIT"}),
        ("GNU Library or Lesser General Public License (LGPL)", {"LGPL"}),
        ("?", set()),
    ],
)
def test_families_are_found_in_both_spellings(said: str, found: set[str]) -> None:
    assert family(said) == found
