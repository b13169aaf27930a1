"""Bundles for macOS 27: step models as Core AI programs, in the forms that the target declares."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from voxcpm_constants.manifest import Manifest, check_files
from voxcpm_constants.step_models import AUDIO_VAE_DECODER, BASE_LM_STEP, FEAT_ENCODER, StepSizes
from voxcpm_constants.targets import CORE_AI, package_form

pytest.importorskip("coreai_torch", exc_type=ImportError)

TINY = StepSizes(kv_length=128, prefill_chunks=(1, 16))


def test_a_bundle_is_whole_and_says_what_it_is(tiny_bundle_27: Path) -> None:
    manifest = Manifest.read(tiny_bundle_27)
    check_files(tiny_bundle_27, manifest.files, digests=True)
    assert (manifest.target, manifest.schema_version) == ("macOS27", 4)
    assert {"coreai-core", "coreai-torch", "coreai-opt"} <= manifest.tools.keys()
    assert {path.suffix for path in (tiny_bundle_27 / "fp16").iterdir()} == {".aimodel"}


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_programs_have_the_declared_functions_and_tensors(tiny_bundle_27: Path, precision: str) -> None:
    from coreai.authoring import AIModelAsset

    manifest = Manifest.read(tiny_bundle_27)
    for name, declared in manifest.step_models.items():
        asset = AIModelAsset.load(tiny_bundle_27 / precision / f"{name}.aimodel")
        summary = asset.summary(include_statistics=False)
        form = package_form(declared, CORE_AI)
        assert set(summary.function_names) == set(form.functions)
        for function, model in form.functions.items():
            given = {name for name, _ in summary.function_inputs(function)}
            passed = () if form.state == "native" else model.state
            assert {t.name for t in (*model.inputs, *passed)} == given


def test_the_weights_of_several_functions_are_stored_once(tiny_bundle_27: Path) -> None:
    manifest = Manifest.read(tiny_bundle_27)
    for name in (BASE_LM_STEP, FEAT_ENCODER):
        assert len(manifest.form(manifest.step_models[name]).functions) > 1
    t = manifest.architecture.base_lm
    layer = 2 * t.hidden_size * t.head_dim * (t.num_heads + t.num_kv_heads)
    weights = t.num_layers * (layer + 3 * t.hidden_size * t.intermediate_size)
    size = (tiny_bundle_27 / "fp32" / f"{BASE_LM_STEP}.aimodel" / "main.mlirb").stat().st_size
    assert 4 * weights < size < 6 * weights


def test_precisions_have_the_sizes_of_their_formats(
    tiny_bundle_27: Path, some_packages: Callable[..., Path]
) -> None:
    def size(folder: Path, precision: str) -> int:
        return (folder / precision / f"{BASE_LM_STEP}.aimodel" / "main.mlirb").stat().st_size

    small = some_packages("core-ai-small", "tiny", [BASE_LM_STEP], TINY, ("int8", "int4"), "macOS27")
    sizes = [size(tiny_bundle_27, p) for p in ("fp32", "fp16")] + [size(small, p) for p in ("int8", "int4")]
    assert sizes == sorted(sizes, reverse=True)
    # A quarter of the bytes, and the graph of two functions.
    assert sizes[2] < 0.5 * sizes[0]


def test_nothing_in_a_program_names_this_machine(tiny_bundle_27: Path) -> None:
    repository = Path(__file__).resolve().parents[2]
    program = (tiny_bundle_27 / "fp32" / f"{AUDIO_VAE_DECODER}.aimodel" / "main.mlirb").read_bytes()
    for private in (str(repository), str(Path.home()), "site-packages"):
        assert private.encode() not in program
    metadata = json.loads(
        (tiny_bundle_27 / "fp32" / f"{AUDIO_VAE_DECODER}.aimodel" / "metadata.json").read_text()
    )
    assert "VoxCPM audio_vae_decoder, fp32" in json.dumps(metadata)


def test_what_does_not_go_together_is_refused_before_anything_is_read(
    tiny_checkpoint: Path, tmp_path: Path, command: Callable[..., object]
) -> None:
    done = command(
        "convert", tiny_checkpoint, "-o", tmp_path / "b", "--target", "macos27", "--kv-cache", "rows"
    )
    assert done.returncode == 2  # type: ignore[attr-defined]
    assert "--kv-cache rows needs --target macos14" in done.stderr  # type: ignore[attr-defined]
    assert not list(tmp_path.iterdir())


def test_the_command_speaks_for_itself_alone(
    tiny_checkpoint: Path, tmp_path: Path, command: Callable[..., object]
) -> None:
    done = command(
        "convert", tiny_checkpoint, "-o", tmp_path / "b", "--target", "macos27", "--precision", "int8",
        "--max-length", 64, "--prefill-chunk", 1,
    )  # fmt: skip
    assert done.returncode == 0  # type: ignore[attr-defined]
    said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]  # type: ignore[attr-defined]
    assert len([line for line in said if "done" in line or "digests" in line]) == 7
    assert "for macOS27" in " ".join(said)
    assert len(said) <= 9
    assert "Warn" not in " ".join(said)
    assert "torchao" not in " ".join(said)
