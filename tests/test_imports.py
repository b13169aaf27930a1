"""Import directions: constants ← runtime ← server, constants ← conversion, runtime ← what conversion measures with,
everything ← validation; training is alone.

coremltools itself imports torch if it is installed, so `sys.modules` proves nothing. Sources are read with `ast`, and
the runtime is started in an environment where torch cannot be imported.
"""

import ast
import functools
import importlib.util
import subprocess
import sys
from itertools import accumulate
from pathlib import Path

import pytest

import voxcpm_runtime

REPOSITORY = Path(__file__).resolve().parents[1]
# Imported package → the other packages that may import it.
IMPORTERS = {
    "voxcpm_constants": {"voxcpm_conversion", "voxcpm_runtime", "voxcpm_server", "voxcpm_validation"},
    "voxcpm_conversion": {"voxcpm_validation"},
    "voxcpm_runtime": {"voxcpm_conversion", "voxcpm_server", "voxcpm_training", "voxcpm_validation"},
    "voxcpm_server": {"voxcpm_validation"},
    "voxcpm_training": set(),
    "voxcpm_validation": {"voxcpm_training"},
    "torch": {"voxcpm_conversion", "voxcpm_training", "voxcpm_validation"},
    "transformers": {"voxcpm_training", "voxcpm_validation"},
    "voxcpm": {"voxcpm_validation"},
}
PACKAGES = [package for package in IMPORTERS if package.startswith("voxcpm_")]


def modules_of(package):
    return sorted((REPOSITORY / package.removeprefix("voxcpm_") / package).rglob("*.py"))


def imports(source):
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


@pytest.mark.parametrize("package", PACKAGES)
def test_package_imports_follow_the_layering(package):
    modules = modules_of(package)
    assert modules
    wrong = [
        f"{path.relative_to(REPOSITORY)}, line {line}: {package} must not import {imported}"
        for path in modules
        for line, imported in imports(path.read_text(encoding="utf-8"))
        if imported != package and package not in IMPORTERS.get(imported, {package})
    ]
    assert not wrong, "\n".join(wrong)


def test_conversion_imports_the_runtime_only_to_measure():
    """The other modules of the conversion must not depend on how step models are run."""
    importers = {
        path.stem
        for path in modules_of("voxcpm_conversion")
        if "voxcpm_runtime" in {package for _, package in imports(path.read_text(encoding="utf-8"))}
    }
    assert importers == {"gate", "recording"}


# What the server takes besides the names at the runtime's top: samples and their files, words, parts of a speech.
OF_SPEECH = {
    f"voxcpm_runtime.{module}"
    for module in (
        *("audio.pcm", "audio.reading", "speech.request", "speech.results", "speech.saved_segments"),
        *("speech.seeds", "storage.atomic_file", "text.lexicon", "voices.recordings"),
        *("words.files", "words.words"),
    )
}
# A command is made of what all commands are made of: options, opening a bundle, the line of status. So is what it does
# on other machines. None of this is the runtime's public API, so each module of the server says here what it takes.
OF_COMMANDS = {
    "command": {"shared_arguments"},
    "process": {"shared_arguments", "status_line"},
    "cluster": {"shared_arguments"},
    "door": {"shared_arguments"},
    "serve": {"shared_arguments", "status_line"},
    "batch": {"batch_lines", "shared_arguments", "status_line"},
}


def test_server_uses_only_public_names_of_the_runtime():
    private = []
    for path in modules_of("voxcpm_server"):
        commands = OF_COMMANDS.get(path.stem, ())
        allowed = OF_SPEECH | {f"voxcpm_runtime.commands.{module}" for module in commands}
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module == "voxcpm_runtime":
                private += [a.name for a in node.names if a.name not in voxcpm_runtime.__all__]
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("voxcpm_runtime"):
                private += [] if node.module in allowed else [f"{path.stem}: {node.module}"]
            elif isinstance(node, ast.Import):
                private += [a.name for a in node.names if a.name.startswith("voxcpm_runtime.")]
    assert not private


ROOMS = (
    *("storage", "argument_types", "options", "text", "audio", "words", "bundle", "backends"),
    *("model", "voices", "speech", "batch", "voxcpm", "commands", "doctor"),
)
OPTIONAL_ROOMS = tuple(
    f"voxcpm_runtime.{room}" for room in ("backends.core_ai", "batch", "text.english", "speech.markup")
)


@functools.cache
def imports_within(package, *, doors):
    """Each module of a package and the modules of it that it imports, inside functions and for types too.

    A module of a subpackage is imported after that subpackage's `__init__`. doors: whether imports of optional rooms on
    first use count.
    """
    root = REPOSITORY / package.removeprefix("voxcpm_")
    paths = {".".join(p.relative_to(root).with_suffix("").parts): p for p in modules_of(package)}
    del paths[f"{package}.__init__"]
    found: dict[str, set[str]] = {name: set() for name in paths}
    for name, path in paths.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                is_door = node not in tree.body and (node.module or "").startswith(OPTIONAL_ROOMS)
                if is_door and not doors:
                    continue
                package = name.rsplit(".", node.level)[0] if node.level else ""
                module = f"{package}.{node.module or ''}".strip(".")
                named = {module, *(f"{module}.{alias.name}" for alias in node.names)}
                found[name] |= {m for n in named for m in (n, f"{n}.__init__") if m in paths}
        packages = {f"{part}.__init__" for other in found[name] for part in _parents(other) - _parents(name)}
        found[name] |= packages & paths.keys()
    return found


def _parents(module):
    return set(accumulate(module.split(".")[:-1], "{}.{}".format))


def test_runtime_packages_follow_the_layering():
    def place(module):
        return ROOMS.index(module.split(".")[1])

    wrong = [
        f"{module} imports {other}"
        for module, others in imports_within("voxcpm_runtime", doors=False).items()
        for other in others
        if place(other) > place(module)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("package", PACKAGES)
def test_there_are_no_circles(package):
    left = dict(imports_within(package, doors=True))
    while leaves := [module for module, others in left.items() if not others & left.keys() - {module}]:
        for module in leaves:
            del left[module]
    assert not left, f"a circle within {sorted(left)}"


# Library → the only files that import it, with telemetry off. The last two import onnxruntime.
AFTER_TELEMETRY = {
    "onnxruntime": {"runtime/voxcpm_runtime/backends/portable/onnx_runtime.py"},
    "faster_whisper": {"validation/voxcpm_validation/listening/recognition.py"},
    "hibari": {"training/voxcpm_training/voices.py"},
}


def test_onnx_runtime_is_imported_only_with_telemetry_off():
    files = [*REPOSITORY.glob("*.py"), *(file for package in PACKAGES for file in modules_of(package))]
    files += [*(REPOSITORY / "benchmarks").rglob("*.py"), *(REPOSITORY / "tests").rglob("*.py")]
    found: dict[str, set[str]] = {library: set() for library in AFTER_TELEMETRY}
    for file in files:
        source = file.read_text(encoding="utf-8")
        # Most files contain none of them, and parsing is slow.
        for _, library in imports(source) if any(library in source for library in found) else ():
            if library in found:
                found[library].add(file.relative_to(REPOSITORY).as_posix())
    assert found == AFTER_TELEMETRY


def test_a_public_class_has_its_name_alone():
    """Not in training, and in the modules that keep upstream's names."""
    found: dict[str, Path] = {}
    paths = [path for package in PACKAGES for path in modules_of(package)]
    for path in (
        path for path in paths if not {"modules", "training"} & {*path.relative_to(REPOSITORY).parts}
    ):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                assert found.setdefault(node.name, path) == path, (
                    f"{node.name}: {found[node.name]} and {path}"
                )


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


def test_runtime_and_command_line_do_not_import_torch():
    modules = [
        ".".join(path.relative_to(REPOSITORY / "runtime").with_suffix("").parts).removesuffix(".__init__")
        for path in modules_of("voxcpm_runtime")
        if path.stem != "__main__"
    ]
    if importlib.util.find_spec("onnxruntime") is None:  # a Mac without the validate extra
        modules = [name for name in modules if not name.startswith("voxcpm_runtime.backends.portable")]
    program = f"""{WITHOUT_TORCH}
import importlib
for name in {modules}:
    importlib.import_module(name)
sys.argv = ["voxcpm-coreml", "generate", "--help"]
from voxcpm_runtime.commands.cli import main
sys.exit(main())
"""
    started = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert started.returncode == 0, started.stderr
    assert "--text" in started.stdout


HEAVY = {"numpy", "pydantic", "onnxruntime", "coremltools", "soundfile", "safetensors", "tokenizers"}


def test_import_and_help_are_lightweight():
    program = f"""
import sys, voxcpm_runtime
assert "VoxCPM" in dir(voxcpm_runtime)
voxcpm_runtime.GenerationOptions(cfg_value=1.5)
from voxcpm_runtime.commands.cli import main
assert main(["--help"]) == 0
print({HEAVY} & set(sys.modules))
"""
    started = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert started.stdout.splitlines()[-1] == "set()"


def test_sixteen_public_names_resolve():
    assert len(voxcpm_runtime.__all__) == 16
    for name in voxcpm_runtime.__all__:
        assert getattr(voxcpm_runtime, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'Narrator'"):
        voxcpm_runtime.Narrator  # noqa: B018 - asking is the test
