import re
import shutil
import sys
from functools import partial

import pytest

from shared_bundles import ALL_PRECISIONS
from voxcpm_constants.manifest import Manifest, check_files
from voxcpm_constants.step_models import StepSizes
from voxcpm_conversion.core_ml.packages import compile_packages
from voxcpm_conversion.workspace import Workspace


def test_manifest_lists_every_file_and_no_other(tiny_bundle):
    manifest = Manifest.read(tiny_bundle)
    found = {p.relative_to(tiny_bundle).as_posix() for p in tiny_bundle.rglob("*") if p.is_file()}
    assert found == {*manifest.files, "manifest.json", "manifest.sha256", "README.md"}
    check_files(tiny_bundle, manifest.files, digests=True)
    assert {p.name for p in tiny_bundle.iterdir() if p.is_dir()} == {
        *("constants", "tokenizer", "vectors"), *ALL_PRECISIONS,
    }  # fmt: skip


def _two(bundle):
    """The manifest of a bundle with two step models in fp16."""
    manifest = Manifest.read(bundle)
    two = {name: manifest.step_models[name] for name in ("feat_encoder", "locdit_step")}
    return manifest.model_copy(update={"step_models": two, "precisions": ("fp16",)})


def _workspace(bundle, folder):
    """A conversion whose packages are finished but not compiled."""
    workspace = Workspace(folder / "bundle", {})
    for package in _two(bundle).package_folders(["fp16"]):
        workspace.add(package, partial(shutil.copytree, bundle / package))
    return workspace


def test_packages_are_compiled_if_a_compiler_is_available(core_ml, tiny_bundle, tmp_path):
    workspace = _workspace(tiny_bundle, tmp_path)
    for _ in range(2):
        compile_packages(workspace, _two(tiny_bundle))
    assert [event["package"] for event in core_ml.events("compile")] == ["feat_encoder", "locdit_step"]
    assert {p.name for p in (workspace.folder / "fp16").glob("*.mlmodelc")} == {
        "feat_encoder.mlmodelc",
        "locdit_step.mlmodelc",
    }


def test_package_rejected_by_the_compiler_has_no_compiled_form(core_ml, tiny_bundle, tmp_path):
    core_ml.fault(at="compile", package="feat_encoder")
    workspace = _workspace(tiny_bundle, tmp_path)
    refusal = (
        r"fp16/feat_encoder.mlpackage: no .mlmodelc, since Core ML on macOS 15.5 rejects it \(.*Incompatible"
    )
    with pytest.warns(UserWarning, match=refusal):
        compile_packages(workspace, _two(tiny_bundle))
    compiled = {name.split("/")[1] for name in workspace.files() if ".mlmodelc/" in name}
    assert compiled == {"locdit_step.mlmodelc"}


def test_command_silences_other_libraries(tiny_bundle):
    said = tiny_bundle.with_name("output.txt").read_text()
    noise = re.compile(r"it/s|ops/s|passes/s|warn|deprecat|failed to load|\d+%\|", re.IGNORECASE)
    assert [line for line in said.splitlines() if noise.search(line)] == []
    # Without a terminal, progress is printed every ten seconds only.
    for expected in ("No .mlmodelc" if sys.platform != "darwin" else "", "128 positions"):
        # The terminal may have wrapped it.
        assert expected in " ".join(said.split())
    assert Manifest.read(tiny_bundle).sizes == StepSizes(kv_length=128, prefill_chunks=(1, 16, 64))
