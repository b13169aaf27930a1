"""Import directions: constants ← runtime, constants ← conversion, everything ← validation; training stands alone.

coremltools itself imports torch if it is installed, so `sys.modules` proves nothing. Sources are read with `ast`, and
the runtime is started in an environment where torch cannot be imported.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]

ROOTS = {
    "voxcpm_constants": REPOSITORY / "constants",
    "voxcpm_conversion": REPOSITORY / "conversion",
    "voxcpm_runtime": REPOSITORY / "runtime",
    "voxcpm_training": REPOSITORY / "training",
    "voxcpm_validation": REPOSITORY / "validation",
}
# Imported package → the other packages that may import it.
IMPORTERS = {
    "voxcpm_constants": {"voxcpm_conversion", "voxcpm_runtime", "voxcpm_validation"},
    "voxcpm_conversion": {"voxcpm_validation"},
    "voxcpm_runtime": {"voxcpm_validation"},
    "voxcpm_training": set(),
    "voxcpm_validation": set(),
    "torch": {"voxcpm_conversion", "voxcpm_training", "voxcpm_validation"},
    "transformers": {"voxcpm_validation"},
    "voxcpm": {"voxcpm_validation"},
}


def modules_of(package: str) -> list[Path]:
    return sorted((ROOTS[package] / package).rglob("*.py"))


def imports(source: str) -> Iterator[tuple[int, str]]:
    """(line, top-level package) of each absolute import, also inside functions and with import_module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.partition(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.lineno, (node.module or "").partition(".")[0]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(
            ("import_module", "__import__", "importorskip")
        ):
            for argument in node.args[:1]:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield node.lineno, argument.value.partition(".")[0]


def forbidden(package: str, source: str) -> list[str]:
    return [
        f"line {line}: {package} must not import {imported}"
        for line, imported in imports(source)
        if imported != package and package not in IMPORTERS.get(imported, {package})
    ]


@pytest.mark.parametrize("package", ROOTS)
def test_each_package_imports_only_what_it_may(package: str) -> None:
    modules = modules_of(package)
    assert modules, f"no modules in {ROOTS[package]}"

    wrong = [
        f"{path.relative_to(REPOSITORY)}, {violation}"
        for path in modules
        for violation in forbidden(package, path.read_text(encoding="utf-8"))
    ]

    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("package", "source"),
    [
        ("voxcpm_constants", "from voxcpm_runtime import VoxCPM"),
        ("voxcpm_conversion", "import voxcpm_runtime.backends.portable.step_model"),
        ("voxcpm_conversion", "from voxcpm.model import VoxCPMModel"),
        ("voxcpm_runtime", "import numpy, torch.nn as nn"),
        ("voxcpm_runtime", "def export():\n    from voxcpm_conversion import convert"),
        ("voxcpm_runtime", "import importlib\nimportlib.import_module('voxcpm_validation.report')"),
        ("voxcpm_runtime", "__import__('torch')"),
        ("voxcpm_training", "from voxcpm_conversion.modules import minicpm4"),
    ],
)
def test_a_forbidden_import_is_found(package: str, source: str) -> None:
    assert forbidden(package, source)


@pytest.mark.parametrize(
    ("package", "source"),
    [
        (
            "voxcpm_runtime",
            "from voxcpm_constants.manifest import Manifest\nfrom . import portable\nimport numpy",
        ),
        ("voxcpm_conversion", "import torch\nfrom voxcpm_constants import errors"),
        ("voxcpm_validation", "import torch, voxcpm, voxcpm_runtime, voxcpm_conversion"),
    ],
)
def test_an_allowed_import_is_allowed(package: str, source: str) -> None:
    assert not forbidden(package, source)


# Library → the only files that import it: in these its telemetry is off first.
AFTER_TELEMETRY = {
    "onnxruntime": {
        "runtime/voxcpm_runtime/backends/portable/onnx_runtime.py",
        "training/voxcpm_training/onnx_runtime.py",
    },
    # These import onnxruntime.
    "faster_whisper": {"validation/voxcpm_validation/recognition.py"},
    "hibari": {"training/voxcpm_training/voices.py"},
}


def test_onnx_runtime_is_imported_where_its_telemetry_is_off() -> None:
    folders = [*ROOTS.values(), REPOSITORY / "benchmarks", REPOSITORY / "tests"]
    files = [*REPOSITORY.glob("*.py"), *(file for folder in folders for file in folder.rglob("*.py"))]

    found: dict[str, set[str]] = {library: set() for library in AFTER_TELEMETRY}
    for file in files:
        for _, library in imports(file.read_text(encoding="utf-8")):
            if library in found:
                found[library].add(file.relative_to(REPOSITORY).as_posix())

    assert found == AFTER_TELEMETRY


WITHOUT_TORCH = """
import sys

class Absent:
    names = {"torch", "torchaudio", "transformers", "voxcpm", "voxcpm_conversion", "voxcpm_validation"}

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None

sys.meta_path.insert(0, Absent())
"""


def start_without_torch(statements: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH + statements],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "COLUMNS": "120", "_TYPER_FORCE_DISABLE_TERMINAL": "1"},  # plain help in CI, too
    )


def test_torch_is_absent_where_the_runtime_is_tried() -> None:
    started = start_without_torch("import torch")

    assert started.returncode != 0
    assert "No module named 'torch'" in started.stderr


def test_every_runtime_module_imports_without_torch() -> None:
    modules = [
        ".".join(path.relative_to(ROOTS["voxcpm_runtime"]).with_suffix("").parts).removesuffix(".__init__")
        for path in modules_of("voxcpm_runtime")
        if path.stem != "__main__"
    ]
    assert "voxcpm_runtime.voxcpm" in modules
    if importlib.util.find_spec("onnxruntime") is None:  # a Mac without the validate extra
        modules = [name for name in modules if not name.startswith("voxcpm_runtime.backends.portable")]

    started = start_without_torch(
        "import importlib\n" + "\n".join(f"importlib.import_module({m!r})" for m in modules)
    )

    assert started.returncode == 0, started.stderr


def test_the_command_line_starts_without_torch() -> None:
    started = start_without_torch(
        "sys.argv = ['voxcpm-coreml', 'generate', '--help']\n"
        "from voxcpm_runtime.commands.cli import main\nsys.exit(main())"
    )

    assert started.returncode == 0, started.stderr
    assert "--text" in started.stdout
