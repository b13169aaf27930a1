"""Installs the stand-in in this process and its children."""

import atexit
import os
import plistlib
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path

from coreml_stand_in.faults import VARIABLE, Fault, events, settings, told

BINDING = "coremltools.libcoremlpython"
CHILD = Path(__file__).with_name("child")
LOADER = "voxcpm_runtime.backends.core_ml.child"
"""The module that compiles or loads a package as a program."""
SLOW = {"scipy", "sklearn", "torch", "transformers"}
"""Optional imports of coremltools for conversion, which take seconds per process."""


@dataclass
class StandIn:
    """The stand-in while a test runs; child processes have it, too, as they inherit the environment."""

    monkeypatch: object
    folder: Path
    faults: list[Fault] = field(default_factory=list)

    @property
    def log(self) -> Path:
        return self.folder / "events.jsonl"

    def system(self, version: str, build: str) -> None:
        """Make this macOS `version`, such as "14.6"."""
        described = {"ProductVersion": version, "ProductBuildVersion": build}
        (self.folder / "SystemVersion.plist").write_bytes(plistlib.dumps(described))

    def fault(self, **fields) -> None:
        """Inject a fault from now on: the fields of `Fault`."""
        self.faults.append(Fault(**fields))
        self.tell()

    def events(self, at: str, *, here: bool = False) -> list[dict]:
        """The events so far, of all processes or only this one: compile, first load, load, predict or crash."""
        return [e for e in events() if e["at"] == at and (not here or e["pid"] == os.getpid())]

    def tell(self) -> None:
        value = settings(self.folder / "SystemVersion.plist", self.log, self.faults)
        self.monkeypatch.setenv(VARIABLE, value)


def install(monkeypatch, folder: Path) -> StandIn:
    """Put the stand-in into coremltools, and make the project believe that this is macOS 15.5, until the test ends."""
    folder.mkdir(parents=True, exist_ok=True)
    stand_in = StandIn(monkeypatch, folder)
    stand_in.system("15.5", "24F74")
    stand_in.tell()
    searched = [str(CHILD), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(searched))
    import_module("voxcpm_conversion.core_ml.toolchain").import_coremltools()
    monkeypatch.setitem(sys.modules, BINDING, import_module("coreml_stand_in.binding"))
    monkeypatch.setattr("voxcpm_constants.macos.SYSTEM_VERSION_FILE", folder / "SystemVersion.plist")
    replace(monkeypatch.setattr)
    return stand_in


def install_in_child() -> None:
    """Put the stand-in into coremltools when it is imported, or in its place where that is enough."""
    if LOADER in sys.orig_argv:
        sys.modules["coremltools"] = import_module("coreml_stand_in.loading_only")
    sys.meta_path.insert(0, Finder())
    atexit.register(lambda: import_module("coreml_stand_in.inputs").release_all())
    with suppress(ImportError):
        import_module("voxcpm_constants.macos").SYSTEM_VERSION_FILE = Path(told()["system_version"])


def replace(set_attribute) -> None:
    """Patch the imported modules of coremltools with the binding and the configured system."""
    binding = import_module("coreml_stand_in.binding")
    new = {name: value for name, value in vars(binding).items() if name.startswith("_ML")}
    new |= {"_is_macos": lambda: True, "_macos_version": binding.system_version}
    for module in [m for name, m in sys.modules.items() if name.startswith("coremltools.")]:
        for name in new.keys() & vars(module).keys():
            set_attribute(module, name, new[name])


class Finder(MetaPathFinder, Loader):
    """Finds the native module here, patches coremltools' system check, and hides `SLOW`."""

    def find_spec(self, name, path=None, _target=None):
        if name in SLOW:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if name == "coremltools.models.utils":
            spec = PathFinder.find_spec(name, path)
            spec.loader = Replaced(name, spec.origin)
            return spec
        return ModuleSpec(name, self) if name == BINDING else None

    def create_module(self, _spec):
        # Under its own name too, as it is one module.
        return import_module("coreml_stand_in.binding")

    def exec_module(self, _module):
        pass


class Replaced(SourceFileLoader):
    """Loads a module and then applies the stand-in's patches."""

    def exec_module(self, module):
        super().exec_module(module)
        replace(setattr)
