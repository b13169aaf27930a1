"""The lists in `hashes/`: each package that the set-up commands install, its version and the SHA-256 of its files.

`make hashes` writes them anew. uv resolves for all systems and Pythons at once and takes digests from PyPI; those of
PyTorch's CPU build, which lies on PyTorch's own index, are read there.
"""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.request
from pathlib import Path
from urllib.error import URLError

from licences import ALSO, normalized

REPOSITORY = Path(__file__).parents[1]
FOLDER = REPOSITORY / "hashes"
CPU_INDEX = "https://download.pytorch.org/whl/cpu/torch/"
BUILD = ("hatchling",)
"""What `pip install .` builds this package with."""
EXTRAS = {
    "make": ("convert", "validate", "listen", "dev"),
    "install": ("convert",),
    "core-ai": ("convert-coreai",),
}
"""List → the extras that its set-up command installs. The longest comes first: the others have its versions."""
WITHOUT_DEPENDENCIES = {"make": ALSO}
CUDA = re.compile(r"(nvidia|cuda)-|triton$")
"""What PyPI's torch for Linux needs and the CPU build does not: a list of its own, of gigabytes."""
OLDEST_PYTHON = "3.10"

Entries = dict[str, list[str]]
"""A package's line, `name==version` and its marker → its digests."""


def entries(text: str) -> Entries:
    """The packages of a list."""
    found: Entries = {}
    for line in text.replace("\\\n", " ").splitlines():
        if line and not line.startswith("#"):
            package, *digests = re.split(r"\s+--hash=sha256:", line.strip())
            found[package] = digests
    return found


def written(found: Entries) -> str:
    """The text of a list."""
    lines = [
        " \\\n".join([package, *(f"    --hash=sha256:{digest}" for digest in sorted(set(digests)))])
        for package, digests in sorted(found.items(), key=lambda item: normalized(item[0]))
    ]
    return "# Written by `make hashes` (tests/hashes.py).\n" + "\n".join(lines) + "\n"


def cpu_digests(page: str, version: str) -> list[str]:
    """The digests that a page of PyTorch's index has of a version's CPU build."""
    return re.findall(rf"torch-{re.escape(version)}(?:%2B|\+)cpu-[^\"#]*#sha256=([0-9a-f]{{64}})", page)


def _compiled(uv: str, *given: str, packages: tuple[str, ...] = ()) -> Entries:
    command = (
        uv, "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--universal", "--generate-hashes",
        "--python-version", OLDEST_PYTHON, "--no-python-downloads", "--index-url", "https://pypi.org/simple",
        "--constraints", "constraints.txt", *given, *(("-",) if packages else ()),
    )  # fmt: skip
    done = subprocess.run(
        command, input="\n".join(packages), cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, check=True
    )
    return entries(done.stdout)


def _digests_of_the_cpu_build(before: Entries) -> list[str]:
    """From the index, or from the list as it is, where that has this version and the index does not answer."""
    torch = next(
        line for line in entries((REPOSITORY / "constraints.txt").read_text()) if line.startswith("torch==")
    )
    try:
        with urllib.request.urlopen(CPU_INDEX, timeout=60) as answer:
            page = answer.read().decode()
    except URLError as error:
        if torch not in before:
            sys.exit(f"error: the digests of the CPU build of {torch} are on {CPU_INDEX} only: {error}")
        sys.stderr.write(f"{CPU_INDEX} does not answer: what hashes/ has of {torch} stays\n")
        return before[torch]
    return cpu_digests(page, torch.partition("==")[2]) or sys.exit(
        f"error: {CPU_INDEX} has no CPU build of {torch}"
    )


def main(uv: str) -> None:
    """Write all lists."""
    whole = FOLDER / "make.txt"
    cpu = _digests_of_the_cpu_build(entries(whole.read_text()) if whole.exists() else {})
    cuda: Entries = {}
    for name, wanted in EXTRAS.items():
        extras = [word for extra in wanted for word in ("--extra", extra)]
        same = ("--constraints", str(whole)) if name != "make" else ()
        found = _compiled(uv, "pyproject.toml", *extras, *same, packages=BUILD)
        if alone := WITHOUT_DEPENDENCIES.get(name):
            found |= _compiled(uv, "--no-deps", packages=alone)
        cuda |= {package: digests for package, digests in found.items() if CUDA.match(package)}
        found = {package: digests for package, digests in found.items() if package not in cuda}
        torch = next(package for package in found if package.startswith("torch=="))
        found[torch] += cpu
        if name == "core-ai":
            # What Core AI adds to `make`'s packages.
            names = {package.partition("==")[0] for package in entries(whole.read_text())}
            found = {package: found[package] for package in found if package.partition("==")[0] not in names}
        FOLDER.mkdir(exist_ok=True)
        (FOLDER / f"{name}.txt").write_text(written(found))
    (FOLDER / "cuda.txt").write_text(written(cuda))


if __name__ == "__main__":
    main(sys.argv[1])
