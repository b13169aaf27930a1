"""Bundles for macOS 27: step models as Core AI programs, in the forms that the target declares."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from core_ai_agreement import beside_torch
from voxcpm_constants.architecture import Architecture
from voxcpm_constants.errors import InputError
from voxcpm_constants.manifest import Manifest, check_files
from voxcpm_constants.step_models import (
    AUDIO_VAE_DECODER,
    BASE_LM_STEP,
    FEAT_ENCODER,
    LOCDIT_SOLVE,
    RESIDUAL_LM_STEP,
    STEP_MODEL_NAMES,
    StepSizes,
    declare_step_models,
)
from voxcpm_constants.targets import CORE_AI, package_form
from voxcpm_conversion.checkpoint import Checkpoint
from voxcpm_conversion.cli import progress_console
from voxcpm_conversion.convert import convert
from voxcpm_conversion.core_ai.toolchain import quiet
from voxcpm_conversion.step_modules import build_step, loaded_modules
from voxcpm_conversion.synthetic_presets import presets
from voxcpm_runtime.backends.core_ai.step_model import load_core_ai_step_model

pytest.importorskip("coreai_torch", exc_type=ImportError)

TINY = StepSizes(kv_length=128, prefill_chunks=(1,))


def test_a_bundle_is_whole_and_says_what_it_is(tiny_bundle_27: Path) -> None:
    manifest = Manifest.read(tiny_bundle_27)
    check_files(tiny_bundle_27, manifest.files, digests=True)
    assert (manifest.target, manifest.schema_version) == ("macOS27", 5)
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
            assert {t.name for t in model.inputs} == given
        operations = str(asset.program._module._mlir_module.operation)
        assert "?" not in operations.replace('"?"', "")
        assert "scatter_nd" not in operations
        assert operations.count("coreai.slice_update") == 2 * len(form.functions) * (
            len(declared.state) // 2 if declared.has_caches else 0
        )
        # Each from (layer, 0, 0, position, 0) on, where the position is the input itself, not computed from it.
        for function in operations.split("coreai.graph @")[1:]:
            for begin in re.findall(r"slice_update \S+ with \S+ at \((%\d+), ", function):
                assert re.search(rf"{begin} = coreai.concat [^:]*, %arg1, %\d+ :", function)
        assert "conv_transpose" not in operations


@pytest.mark.parametrize("preset", ["0.5b", "1.5", "2"])
def test_a_patch_has_at_most_eight_output_arrays(preset: str) -> None:
    """Core AI's Python ends a process after some 16,000 of them."""
    architecture = Architecture.model_validate(presets()[preset])
    declared = declare_step_models(architecture, StepSizes(solver_steps=10))
    called = [AUDIO_VAE_DECODER, FEAT_ENCODER, BASE_LM_STEP, RESIDUAL_LM_STEP, LOCDIT_SOLVE]
    functions = [next(iter(package_form(declared[name], CORE_AI).functions.values())) for name in called]
    assert {package_form(declared[name], CORE_AI).state for name in called} == {"native"}
    assert sum(len(function.outputs) for function in functions) == 7


def test_the_weights_of_several_functions_are_stored_once(tiny_bundle_27: Path) -> None:
    manifest = Manifest.read(tiny_bundle_27)
    for name in (BASE_LM_STEP, FEAT_ENCODER):
        assert len(manifest.form(manifest.step_models[name]).functions) > 1
    t = manifest.architecture.base_lm
    layer = 2 * t.hidden_size * t.head_dim * (t.num_heads + t.num_kv_heads)
    weights = t.num_layers * (layer + 3 * t.hidden_size * t.intermediate_size)
    size = (tiny_bundle_27 / "fp32" / f"{BASE_LM_STEP}.aimodel" / "main.mlirb").stat().st_size
    assert 4 * weights < size < 6 * weights


def test_nothing_in_a_program_names_this_machine(tiny_bundle_27: Path) -> None:
    repository = Path(__file__).resolve().parents[2]
    program = (tiny_bundle_27 / "fp32" / f"{AUDIO_VAE_DECODER}.aimodel" / "main.mlirb").read_bytes()
    for private in (str(repository), str(Path.home()), "site-packages"):
        assert private.encode() not in program
    metadata = json.loads(
        (tiny_bundle_27 / "fp32" / f"{AUDIO_VAE_DECODER}.aimodel" / "metadata.json").read_text()
    )
    assert "VoxCPM audio_vae_decoder, fp32" in json.dumps(metadata)


def test_the_command_speaks_for_itself_alone(core_ai_conversion: Path) -> None:
    said = [line for line in (core_ai_conversion / "output.txt").read_text().splitlines() if line.strip()]
    # Where the conversion takes long, there are lines of progress, such as "base_lm_step: export".
    said = [line for line in said if line.partition(":")[0] not in STEP_MODEL_NAMES]
    assert "for macOS27" in " ".join(" ".join(said).split())
    # Two sentences, which may be broken over lines.
    assert len(said) <= 5


def test_the_card_says_how_an_app_loads_it(tiny_bundle_27: Path) -> None:
    card = (tiny_bundle_27 / "README.md").read_text()
    assert "for Core AI" in card
    assert 'AIModel(contentsOf: bundle.appending(path: "fp16/feat_encoder.aimodel"))' in card
    assert "mlpackage" not in card


@pytest.mark.usefixtures("own_compiled_27")
@pytest.mark.parametrize(
    ("name", "preset", "sizes", "kv_cache"),
    [
        (BASE_LM_STEP, "tiny", {"base_lm_parts": 2}, "scatter"),
        (BASE_LM_STEP, "tiny", {}, "rows"),
        (RESIDUAL_LM_STEP, "tiny-2", {}, "rows"),
        (LOCDIT_SOLVE, "tiny", {"solver_steps": 3}, "scatter"),
    ],
    ids=["parts", "rows", "rows without positions", "solver"],
)
def test_optional_forms_agree_with_torch(
    name: str,
    preset: str,
    sizes: dict[str, int],
    kv_cache: str,
    some_packages: Callable[..., Path],
    tiny_checkpoint: Path,
    second_checkpoint: Path,
) -> None:
    sized = StepSizes(kv_length=32, prefill_chunks=(1, 4), **sizes)
    folder = some_packages(
        f"core-ai-{name}-{kv_cache}", preset, [name], sized, ("fp32",), "macOS27", kv_cache
    )
    checkpoint = Checkpoint.open(tiny_checkpoint if preset == "tiny" else second_checkpoint)
    declared = declare_step_models(checkpoint.architecture, sized)[name]
    step = build_step(declared, loaded_modules(checkpoint, declared, sized), checkpoint.architecture, sized)
    model = load_core_ai_step_model(folder, Manifest.read(folder), "fp32", name)
    # Chunks in between: each function writes into the state that the others read.
    chunks = (1, 0, 1, 0) if declared.state else (0,)
    for found, expected in beside_torch(declared, step, model, chunks):
        for values, reference in zip(found, expected, strict=True):
            np.testing.assert_allclose(values, reference, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("missing", ["coreai_torch", "coreai_opt"])
def test_without_the_converter_one_line_says_what_to_install(
    missing: str, tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(InputError, match=r"pip install 'voxcpm-coreml\[convert-coreai\]' \(Python 3\.11"):
        convert(
            Checkpoint.open(tiny_checkpoint), tmp_path / "b", precisions=["fp32"], sizes=TINY, target=CORE_AI
        )
    assert not list(tmp_path.iterdir())


def test_the_commands_progress_is_seen_while_the_converter_is_silent(
    capsys: pytest.CaptureFixture[str],
) -> None:
    console = progress_console()
    with quiet():
        print("the converter's", file=sys.stderr)  # noqa: T201 - what is silenced
        console.print("base_lm_step export")
    assert capsys.readouterr().err == "base_lm_step export\n"
