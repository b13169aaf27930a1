"""A conversion leaves either a complete bundle or none."""

import re
import shutil
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from shared_bundles import ALL_PRECISIONS
from voxcpm_constants.manifest import Manifest, check_files, package_path
from voxcpm_constants.step_models import StepSizes
from voxcpm_constants.vectors import vectors_path
from voxcpm_conversion.checkpoint import Checkpoint
from voxcpm_conversion.convert import convert
from voxcpm_conversion.core_ml.packages import compile_packages
from voxcpm_conversion.workspace import Workspace

SIZES = StepSizes(kv_length=64)


def test_manifest_lists_every_file_and_no_other(tiny_bundle):
    manifest = Manifest.read(tiny_bundle)
    found = {p.relative_to(tiny_bundle).as_posix() for p in tiny_bundle.rglob("*") if p.is_file()}
    assert found == {*manifest.files, "manifest.json", "manifest.sha256", "README.md"}
    check_files(tiny_bundle, manifest.files, digests=True)
    assert {p.name for p in tiny_bundle.iterdir() if p.is_dir()} == {
        *("constants", "tokenizer", "vectors"), *ALL_PRECISIONS,
    }  # fmt: skip


class _InterruptedError(KeyboardInterrupt):
    pass


@pytest.mark.robustness
def test_interrupted_conversion_leaves_no_bundle_and_rebuilds_only_missing_or_damaged_parts(
    tiny_checkpoint, tmp_path
):
    """A damaged part would be published with its own digest. Lost vectors alone are rebuilt alone."""

    def interrupt(model, _stage, done, _total):
        if model == "feat_encoder" and done:
            raise _InterruptedError

    bundle, begun = tmp_path / "bundle", tmp_path / ".bundle.partial" / "bundle"
    with pytest.raises(_InterruptedError):
        convert(Checkpoint.open(tiny_checkpoint), bundle, precisions=["fp32"], sizes=SIZES, report=interrupt)
    assert not bundle.exists()
    (weights,) = (begun / package_path("fp32", "audio_vae_decoder")).rglob("weight.bin")
    vectors = begun / vectors_path("audio_vae_encoder")
    content, arrays = weights.read_bytes(), load_file(vectors)
    for path in (weights, vectors):
        right = path.read_bytes()
        path.write_bytes(right[:-1] + bytes([right[-1] ^ 1]))

    resumed: set[str] = set()
    convert(
        Checkpoint.open(tiny_checkpoint),
        bundle,
        precisions=["fp32"],
        sizes=SIZES,
        report=lambda model, *_: resumed.add(model),
    )
    assert "audio_vae_encoder" not in resumed
    assert {"audio_vae_decoder", "feat_encoder"} < resumed
    assert [p.name for p in tmp_path.iterdir()] == ["bundle"]
    assert (bundle / weights.relative_to(begun)).read_bytes() == content
    made = load_file(bundle / vectors.relative_to(begun))
    assert all(np.array_equal(made[name], array) for name, array in arrays.items())
    check_files(bundle, Manifest.read(bundle).files, digests=True)


def _two(bundle: Path) -> Manifest:
    """The manifest of a bundle with two step models in fp16."""
    manifest = Manifest.read(bundle)
    two = {name: manifest.step_models[name] for name in ("feat_encoder", "locdit_step")}
    return manifest.model_copy(update={"step_models": two, "precisions": ("fp16",)})


def _workspace(bundle: Path, folder: Path) -> Workspace:
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
