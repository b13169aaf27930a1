import os
import plistlib
import sys

import pytest

from edited_manifest import edit_manifest
from voxcpm_constants.errors import InputError
from voxcpm_runtime.backends.core_ai import step_model as core_ai
from voxcpm_runtime.backends.loading import check_engine, choose_backend
from voxcpm_runtime.backends.machine import backends
from voxcpm_runtime.bundle.opening import open_bundle

MACS = {"on_a_mac": "15.5", "on_macos_27": "27.0"}


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """machine(name): the kind of machine to simulate."""

    def make(name):
        path = tmp_path / f"{name}.plist"
        if name in MACS:
            system = {"ProductVersion": MACS[name], "ProductBuildVersion": "26A1"}
            path.write_bytes(plistlib.dumps(system))
        monkeypatch.setattr("voxcpm_constants.macos.SYSTEM_VERSION_FILE", path)

    return make


@pytest.fixture
def bundle_of(bundle_folder):
    """bundle_of(target): a bundle for that target."""

    def make(target):
        def change(document):
            if target == "macOS27":
                for package in sorted(bundle_folder.glob("*/*.mlpackage")):
                    package.rename(package.with_suffix(".aimodel"))
                renamed = document["files"].items()
                document["files"] = {name.replace(".mlpackage/", ".aimodel/"): file for name, file in renamed}
            document.update(target=target)

        edit_manifest(bundle_folder, change)
        return open_bundle(bundle_folder)

    return make


@pytest.fixture
def with_core_ai(monkeypatch):
    monkeypatch.setattr(core_ai, "check_installed", lambda: None)


def test_missing_backend_is_a_one_line_error(machine, bundle_of, monkeypatch):
    """Core AI's package is not installed on Python 3.10, for which it has no wheels."""
    machine("on_linux")
    monkeypatch.setitem(sys.modules, "coremltools", None)
    monkeypatch.setitem(sys.modules, "coreai", None)
    assert "portable" in backends()
    for backend, bundle, message in (
        ("coreml", None, "coreml needs macOS"),
        ("cuda", None, "must be one of auto, coreml"),
        ("auto", bundle_of("macOS27"), r'pip install "voxcpm-coreml\[coreai\]"'),
    ):
        with pytest.raises(InputError, match=message):
            choose_backend(backend, bundle)


@pytest.mark.parametrize(
    ("name", "target", "chosen"),
    [
        # Also before macOS 27, as the package includes its own runtime.
        *((name, "macOS27", "coreai") for name in ("on_linux", *MACS)),
        ("on_linux", "macOS15", "portable"),
        ("on_a_mac", "macOS15", "coreml"),
        ("on_macos_27", "macOS15", "coreml"),
    ],
)
@pytest.mark.usefixtures("with_core_ai")
def test_the_backend_is_chosen_by_bundle_and_machine(machine, bundle_of, name, target, chosen):
    machine(name)
    assert choose_backend("auto", bundle_of(target)) == chosen


@pytest.mark.parametrize(("name", "backend"), [("on_linux", "portable"), ("on_macos_27", "coreml")])
def test_threads_are_limited_to_the_affinity_mask(machine, bundle_of, monkeypatch, name, backend):
    """ONNX Runtime would start them all, for minutes. On a Mac it may replace Core ML."""
    machine(name)
    if hasattr(os, "process_cpu_count"):
        monkeypatch.setattr(os, "process_cpu_count", lambda: 3)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 4, 5}, raising=False)
    bundle = bundle_of("macOS14")
    assert check_engine("auto", 3, "auto", bundle) == backend
    with pytest.raises(InputError, match=r"^threads must be .* from 1 to 3 \(the cores .*got 4$"):
        check_engine("auto", 4, "auto", bundle)


@pytest.mark.usefixtures("with_core_ai")
@pytest.mark.parametrize(
    ("target", "words", "message"),
    [
        ("macOS27", ("generate", "-t", "a.", "--backend", "portable"), "portable cannot run bundles for"),
        ("macOS27", ("generate", "-t", "a.", "--compute-units", "cpu"), "compute units are for Core ML only"),
        ("macOS14", ("doctor", "--backend", "coreai"), "coreai cannot run bundles for macos14"),
    ],
)
def test_invalid_backend_fails_before_loading(
    machine, bundle_of, folder, monkeypatch, refusal, target, words, message
):
    machine("on_linux")
    bundle = bundle_of(target)
    for module in ("voxcpm_runtime.voxcpm.place_step_models", "voxcpm_runtime.doctor.command.trials"):
        monkeypatch.setattr(module, lambda *_, **__: pytest.fail("loaded"))
    assert message in refusal(words[0], bundle.folder, *words[1:])
    assert not list(folder.iterdir())
