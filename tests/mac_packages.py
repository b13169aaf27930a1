"""Whether pip finds a wheel of each package that the set-up commands install on a Mac; `make audit` runs it.

pip evaluates markers for the machine that it runs on, so uv resolves: for macOS on Apple silicon, by Darwin's markers.
"""

import itertools
import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
COMMANDS = {
    "pip install .": (),
    'pip install ".[convert]"': ("convert",),
    "make": ("convert", "validate", "listen", "dev"),
}
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
SYSTEMS = ("14.0", "15.0", "26.0")
CORE_AI = ("make, its step for Core AI", ("convert-coreai",))
WITHOUT_WHEEL = "docopt"
"""Required by num2words. It is pure Python, and pip builds it anywhere."""


def resolve(uv: str, system: str, python: str, extras: tuple[str, ...]) -> str:
    """What uv says against installing these extras from wheels alone on that macOS; nothing if it can be done."""
    command = (
        uv, "pip", "compile", "pyproject.toml", "--quiet", "--no-header", "--python-version", python,
        "--python-platform", "aarch64-apple-darwin", "--only-binary", ":all:", "--no-binary", WITHOUT_WHEEL,
        "--no-python-downloads", "--index-url", "https://pypi.org/simple", "--constraints", "constraints.txt",
        *(word for extra in extras for word in ("--extra", extra)),
    )  # fmt: skip
    done = subprocess.run(
        command,
        cwd=REPOSITORY,
        env=os.environ | {"MACOSX_DEPLOYMENT_TARGET": system},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stderr if done.returncode else ""


def main(uv: str) -> int:
    """Print each combination that cannot be installed; 1 if there is any."""
    everywhere = itertools.product(SYSTEMS, PYTHONS, COMMANDS.items())
    tried = [(system, python, *command) for system, python, command in everywhere]
    tried += [("26.0", python, *CORE_AI) for python in PYTHONS[1:]]
    failed = 0
    for system, python, name, extras in tried:
        if said := resolve(uv, system, python, extras):
            failed += 1
            sys.stderr.write(f"macOS {system}, Python {python}, {name}:\n{said}\n")
    sys.stdout.write(
        f"{len(tried) - failed} of {len(tried)} combinations of macOS, Python and command resolve\n"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
