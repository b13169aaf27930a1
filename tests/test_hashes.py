"""`hashes/` has every package of the set-up commands, in one version for each system, with the digests of its files."""

from __future__ import annotations

import re

import pytest
from packaging.requirements import Requirement

from documents import REPOSITORY
from hashes import BUILD, CUDA, EXTRAS, entries
from licences import ALSO, NOT_INSTALLED, dependencies, normalized

LISTS = {path.stem: entries(path.read_text()) for path in (REPOSITORY / "hashes").glob("*.txt")}
CONSTRAINTS = entries((REPOSITORY / "constraints.txt").read_text())
NOT_LISTED = {"ray", "uv", "pip-audit"}
"""Versions in constraints.txt that neither set-up command installs."""
SYSTEMS = [
    {"sys_platform": "linux", "platform_machine": "x86_64", "platform_system": "Linux"},
    {"sys_platform": "linux", "platform_machine": "aarch64", "platform_system": "Linux"},
    {"sys_platform": "darwin", "platform_machine": "arm64", "platform_system": "Darwin"},
]
# PyTorch 2.13.0 for Python 3.11, as both indexes name them.
CPU_BUILD = "6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b"  # torch-2.13.0+cpu-…x86_64.whl
BUILD_FOR_MACS = "e76f9bcecc52b8ff711239a2f7547d5353df95878ab232f0773c1d95928b92f8"  # torch-2.13.0-…arm64.whl


def versions(
    lines: list[str] | dict[str, list[str]], python: str, system: dict[str, str]
) -> dict[str, list[str]]:
    """The versions that are installed of each package, there."""
    there = {**system, "python_version": python, "python_full_version": f"{python}.1", "os_name": "posix"}
    there |= {"platform_python_implementation": "CPython", "implementation_name": "cpython"}
    found: dict[str, list[str]] = {}
    for requirement in map(Requirement, lines):
        if requirement.marker is None or requirement.marker.evaluate(there):
            found.setdefault(normalized(requirement.name), []).append(str(requirement.specifier))
    return found


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12", "3.13"])
@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: "-".join(list(system.values())[:2]))
def test_the_versions_are_those_of_the_constraints_and_one_for_each_system(
    python: str, system: dict[str, str]
) -> None:
    whole = versions(LISTS["make"] | LISTS["core-ai"], python, system)
    wanted = versions(CONSTRAINTS, python, system)
    for_this_system = {"atheris", "coreai-core", "coreai-opt", "coreai-torch", "torchao"}
    for name in NOT_LISTED:
        del wanted[name]
    for name in for_this_system - whole.keys():
        assert (system["platform_machine"], python) != ("x86_64", "3.11"), name
        del wanted[name]

    assert wanted.items() <= whole.items()
    assert [name for name, found in whole.items() if len(found) != 1] == []
    assert versions(LISTS["install"], python, system).items() <= whole.items()


@pytest.mark.parametrize("name", ["install", "make", "core-ai", "cuda"])
def test_each_package_has_one_version_and_digests(name: str) -> None:
    assert LISTS[name]
    for package, digests in LISTS[name].items():
        assert re.match(r"[a-z0-9.-]+==[0-9][^ ]*( ; |$)", package), package
        assert digests, package
        assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in digests), package


def test_what_is_installed_for_this_package_is_in_the_list() -> None:
    listed = {normalized(package.partition("==")[0]) for package in LISTS["make"] | LISTS["core-ai"]}
    brought = {name for name in dependencies() if not CUDA.match(name)}

    assert {"numpy", "fastapi", "pytest", "torch"} <= brought
    # In an environment above this one, `make test-ray` has more.
    if "ray" not in brought:
        assert brought - listed == set()
    assert {normalized(name) for name in (*ALSO, *BUILD)} <= listed
    assert set(NOT_INSTALLED) & {extra for extras in EXTRAS.values() for extra in extras} == set()


def test_no_command_needs_core_ai_whose_wheels_are_for_macos_26_alone() -> None:
    assert [package for package in LISTS["core-ai"] if package.startswith("coreai-core==")]
    for name in ("install", "make"):
        assert [package for package in LISTS[name] if package.startswith(("coreai", "torchao"))] == []


def test_the_digests_of_the_shorter_list_are_those_of_the_longer_one() -> None:
    short, long = (
        {package.partition(" ;")[0]: digests for package, digests in LISTS[name].items()}
        for name in ("install", "make")
    )

    assert [package for package, digests in short.items() if long.get(package) != digests] == []


def test_torch_may_be_the_cpu_build_or_pypis() -> None:
    for name in ("install", "make"):
        assert {CPU_BUILD, BUILD_FOR_MACS} <= set(LISTS[name]["torch==2.13.0"])
        assert not [package for package in LISTS[name] if CUDA.match(package)]
    assert all(CUDA.match(package) for package in LISTS["cuda"])
    assert any(package.startswith("nvidia-cudnn") for package in LISTS["cuda"])


def test_what_the_set_up_commands_install_is_what_the_lists_are_made_of() -> None:
    makefile, readme = ((REPOSITORY / name).read_text(encoding="utf-8") for name in ("Makefile", "README.md"))
    project = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")

    for name in ("make", "core-ai"):
        assert f"-e '.[{','.join(EXTRAS[name])}]'" in makefile
    assert f'pip install ".[{",".join(EXTRAS["install"])}]"' in readme
    assert re.findall(r'^requires = \["([a-z]+)[^"]*"\]$', project, re.MULTILINE) == list(BUILD)
