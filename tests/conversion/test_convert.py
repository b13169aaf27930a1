"""A conversion leaves either a whole bundle or nothing that looks like one."""

from __future__ import annotations

import re
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from safetensors.numpy import load_file

from voxcpm_constants.architecture import Architecture
from voxcpm_constants.arrays import load_constants
from voxcpm_constants.errors import CheckpointError, VoxCPMError
from voxcpm_constants.manifest import Manifest, check_files, package_path
from voxcpm_constants.step_models import StepSizes, decoder_contexts, encoder_contexts
from voxcpm_constants.vectors import vectors_path
from voxcpm_conversion.checkpoint import Checkpoint
from voxcpm_conversion.convert import convert
from voxcpm_conversion.core_ml.compilation import compile_packages, why_not_compiled
from voxcpm_conversion.core_ml.toolchain import import_coremltools
from voxcpm_conversion.workspace import Workspace
from voxcpm_runtime.commands import cli

if TYPE_CHECKING:
    from coreml_stand_in.installation import StandIn

SIZES = StepSizes(kv_length=64)


def _spec(package: Path) -> object:
    return import_coremltools().utils.load_spec(str(package))


def _operations(package: Path) -> list[object]:
    function = _spec(package).mlProgram.functions["main"]  # type: ignore[attr-defined]
    return list(function.block_specializations[function.opset].operations)


def test_manifest_lists_every_file_and_no_other(tiny_bundle: Path) -> None:
    manifest = Manifest.read(tiny_bundle)
    found = {p.relative_to(tiny_bundle).as_posix() for p in tiny_bundle.rglob("*") if p.is_file()}
    assert found == {*manifest.files, "manifest.json", "manifest.sha256", "README.md"}
    check_files(tiny_bundle, manifest.files, digests=True)
    assert {p.name for p in tiny_bundle.iterdir()} == {
        "manifest.json",
        "manifest.sha256",
        "README.md",
        "constants",
        "tokenizer",
        "fp16",
        "int8",
        "fp32",
        "vectors",
    }


def test_constants_equal_the_checkpoint(tiny_bundle: Path, tiny_checkpoint: Path) -> None:
    checkpoint = Checkpoint.open(tiny_checkpoint)
    constants = load_constants(tiny_bundle / "constants", checkpoint.architecture)
    embedding = checkpoint.tensor("base_lm.embed_tokens.weight").numpy()
    np.testing.assert_allclose(constants["embed_tokens"], embedding, rtol=0, atol=2**-25)
    np.testing.assert_array_equal(
        constants["lm_to_dit_proj_w"], checkpoint.tensor("lm_to_dit_proj.weight").numpy()
    )
    np.testing.assert_array_equal(
        constants["res_to_dit_proj_b"], checkpoint.tensor("res_to_dit_proj.bias").numpy()
    )


def test_declared_contexts_are_the_convolutions_own(any_checkpoint: Path) -> None:
    from voxcpm_conversion.modules.audio_vae import CausalConv1d, CausalConvTranspose1d
    from voxcpm_conversion.modules.voxcpm import empty_modules

    a = Architecture.from_file(any_checkpoint / "config.json")

    def widths(module: object) -> list[tuple[int, int]]:
        convolutions = [m for n, m in module.named_modules() if "logvar" not in n]  # type: ignore[attr-defined]
        return [
            (m.in_channels, 1 if isinstance(m, CausalConvTranspose1d) else m.context)
            for m in convolutions
            if isinstance(m, CausalConvTranspose1d) or (isinstance(m, CausalConv1d) and m.context)
        ]

    vae = empty_modules(a).audio_vae
    declared = encoder_contexts(a)
    assert sorted(declared) == sorted(widths(vae.encoder))
    assert sorted(decoder_contexts(a)) == sorted(widths(vae.decoder))


class _InterruptedError(KeyboardInterrupt):
    pass


def test_an_interrupted_conversion_leaves_no_bundle_and_resumes_with_what_is_lacking_or_damaged(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """A damaged part would be published with its own digest. If only vectors are lost, only they are made again."""

    def interrupt(model: str, _stage: str, done: int, _total: int) -> None:
        if model == "feat_encoder" and done:
            raise _InterruptedError

    bundle, begun = tmp_path / "bundle", tmp_path / ".bundle.partial"
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


def _refused(
    error: type[VoxCPMError], match: str, checkpoint: Path, bundle: Path, sizes: StepSizes = SIZES
) -> None:
    before = sorted(bundle.parent.iterdir())
    with pytest.raises(error, match=match) as raised:
        convert(Checkpoint.open(checkpoint), bundle, precisions=["fp16"], sizes=sizes)
    assert "\n" not in str(raised.value).strip() or error is CheckpointError
    assert sorted(bundle.parent.iterdir()) == before


def test_weights_that_do_not_match_are_named(tiny_checkpoint: Path, tmp_path: Path) -> None:
    from safetensors import torch as safetensors_torch

    broken = tmp_path / "checkpoint"
    shutil.copytree(tiny_checkpoint, broken)
    weights = safetensors_torch.load_file(broken / "model.safetensors")
    del weights["stop_head.weight"]
    safetensors_torch.save_file(weights, broken / "model.safetensors")
    _refused(CheckpointError, "stop_head.weight", broken, tmp_path / "bundle")


def _workspace(bundle: Path, folder: Path) -> Workspace:
    """A conversion whose packages are finished, and not compiled yet."""
    workspace = Workspace(folder / "bundle", {})
    for name in ("feat_encoder", "locdit_step"):
        package = package_path("fp16", name)
        shutil.copytree(bundle / package, workspace.folder / package)
    return workspace


def test_packages_are_compiled_where_the_compiler_is(
    core_ml: StandIn, tiny_bundle: Path, tmp_path: Path
) -> None:
    workspace = _workspace(tiny_bundle, tmp_path)

    for _ in range(2):
        compile_packages(workspace, ["feat_encoder", "locdit_step"], ["fp16"], "macOS14")

    assert [event["package"] for event in core_ml.events("compile")] == ["feat_encoder", "locdit_step"]
    assert {p.name for p in (workspace.folder / "fp16").glob("*.mlmodelc")} == {
        "feat_encoder.mlmodelc",
        "locdit_step.mlmodelc",
    }


def test_packages_for_a_newer_system_are_not_compiled(
    core_ml: StandIn, tiny_bundle: Path, tmp_path: Path
) -> None:
    core_ml.system("14.6.1", "23G93")
    workspace = _workspace(tiny_bundle, tmp_path)

    compile_packages(workspace, ["feat_encoder"], ["fp16"], "macOS15")

    assert not core_ml.events("compile")
    assert why_not_compiled("macOS15") == (
        "macOS15 packages are compiled on macOS 15 or newer, and this is macOS 14.6.1"
    )
    assert why_not_compiled("macOS14") is None


def test_a_package_that_the_compiler_refuses_has_no_compiled_form(
    core_ml: StandIn, tiny_bundle: Path, tmp_path: Path
) -> None:
    core_ml.fault(at="compile", package="feat_encoder")
    workspace = _workspace(tiny_bundle, tmp_path)

    refusal = (
        r"fp16/feat_encoder.mlpackage: no .mlmodelc, since Core ML on macOS 15.5 refuses it \(.*Incompatible"
    )
    with pytest.warns(UserWarning, match=refusal):
        compile_packages(workspace, ["feat_encoder", "locdit_step"], ["fp16"], "macOS14")

    compiled = {name.split("/")[1] for name in workspace.files() if ".mlmodelc/" in name}
    assert compiled == {"locdit_step.mlmodelc"}


def test_the_command_speaks_for_itself_alone(command_conversion: Path) -> None:
    said = (command_conversion / "output.txt").read_text()
    noise = re.compile(r"it/s|ops/s|passes/s|warn|deprecat|failed to load|\d+%\|", re.IGNORECASE)
    assert [line for line in said.splitlines() if noise.search(line)] == []
    # Off a terminal a line of progress comes every ten seconds only.
    for expected in (
        "No .mlmodelc" if sys.platform != "darwin" else "",
        "128 positions",
    ):
        # The terminal may have wrapped it.
        assert expected in " ".join(said.split())
    assert Manifest.read(command_conversion / "bundle").sizes == StepSizes(
        kv_length=128, prefill_chunks=(1, 16, 64)
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing", "-o", "b"], "no checkpoint here"),
        (["{checkpoint}", "-o", "b", "--precision", "fp8"], "expected one of fp16, int8, int4, fp32"),
        (["{checkpoint}", "-o", "b", "--max-length", "0"], "expected 1 to 1048576 positions"),
        (["{checkpoint}", "-o", "b", "--max-length", "513"], "at most 512 positions"),
        (["{other}", "-o", "b"], "lm_config"),
        (["{checkpoint}", "-o", "b", "--target", "ios19"], "expected one of macos14, macos15"),
        (["{checkpoint}", "-o", "b", "--precision", "int4"], "int4 needs --target macos15"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    tiny_checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "hidden_size": 64}')
    code = cli.main(["convert", *(a.format(checkpoint=tiny_checkpoint, other=other) for a in arguments)])
    said = capsys.readouterr().err
    assert code == 2
    assert said.startswith("error: ")
    assert message in said
    assert said.count("\n") == 1
    assert [p.name for p in tmp_path.iterdir()] == ["other"]


def test_int8_quantises_every_large_matrix_but_no_rotary_table(tiny_bundle: Path) -> None:
    operations = _operations(tiny_bundle / package_path("int8", "base_lm_step"))
    types = Counter(op.type for op in operations)  # type: ignore[attr-defined]
    # q, o, gate, up and down of two layers (k and v have too few elements), two of the quantiser, and stop_proj.
    assert types["constexpr_affine_dequantize"] == 2 * 5 + 3
    quantised = {op.outputs[0].name for op in operations if op.type == "constexpr_affine_dequantize"}  # type: ignore[attr-defined]
    gathered = {
        argument.name
        for op in operations
        if op.type == "gather"  # type: ignore[attr-defined]
        for argument in op.inputs["x"].arguments  # type: ignore[attr-defined]
    }
    assert gathered
    assert not gathered & quantised
