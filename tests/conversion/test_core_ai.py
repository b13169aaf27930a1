import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from torch import nn

from core_ai_agreement import beside_torch
from voxcpm_constants import step_models as names
from voxcpm_constants.errors import InputError
from voxcpm_constants.manifest import Manifest, check_files
from voxcpm_constants.step_models import StepSizes, declare_step_models
from voxcpm_constants.targets import CORE_AI
from voxcpm_conversion import convert as conversion
from voxcpm_conversion.checkpoint import Checkpoint
from voxcpm_conversion.convert import convert
from voxcpm_conversion.core_ai import packages
from voxcpm_conversion.core_ai.modules import use_phases
from voxcpm_conversion.step_modules import build_step, loaded_modules
from voxcpm_runtime.backends.core_ai.worker import CoreAIWorker
from voxcpm_runtime.commands import cli
from voxcpm_validation.measures import agreement

pytest.importorskip("coreai_torch", exc_type=ImportError)

TINY = StepSizes(kv_length=128, prefill_chunks=(1,))


def test_bundle_is_complete_and_described(tiny_bundle_27):
    manifest = Manifest.read(tiny_bundle_27)
    check_files(tiny_bundle_27, manifest.files, digests=True)
    assert manifest.target == "macOS27"
    assert {"coreai-core", "coreai-torch", "coreai-opt"} <= manifest.tools.keys()
    assert {path.suffix for path in (tiny_bundle_27 / "fp16").iterdir()} == {".aimodel"}


def test_functions_share_stored_weights(tiny_bundle_27):
    manifest = Manifest.read(tiny_bundle_27)
    for name in (names.BASE_LM_STEP, names.FEAT_ENCODER):
        assert len(manifest.form(manifest.step_models[name]).functions) > 1
    t = manifest.architecture.base_lm
    layer = 2 * t.hidden_size * t.head_dim * (t.num_heads + t.num_kv_heads)
    weights = t.num_layers * (layer + 3 * t.hidden_size * t.intermediate_size)
    size = (tiny_bundle_27 / "fp32" / f"{names.BASE_LM_STEP}.aimodel" / "main.mlirb").stat().st_size
    assert 4 * weights < size < 6 * weights


def test_programs_contain_no_local_paths(tiny_bundle_27):
    repository = Path(__file__).resolve().parents[2]
    program = (tiny_bundle_27 / "fp32" / f"{names.AUDIO_VAE_DECODER}.aimodel" / "main.mlirb").read_bytes()
    for private in (str(repository), str(Path.home()), "site-packages"):
        assert private.encode() not in program
    metadata = json.loads(
        (tiny_bundle_27 / "fp32" / f"{names.AUDIO_VAE_DECODER}.aimodel" / "metadata.json").read_text()
    )
    assert "VoxCPM audio_vae_decoder, fp32" in json.dumps(metadata)


@pytest.mark.usefixtures("own_compiled_27")
@pytest.mark.parametrize(
    ("name", "preset", "sizes", "kv_cache"),
    [
        (names.BASE_LM_STEP, "tiny", {"base_lm_parts": 2}, "scatter"),
        (names.BASE_LM_STEP, "tiny", {}, "rows"),
        (names.RESIDUAL_LM_STEP, "tiny-2", {}, "rows"),
        (names.LOCDIT_SOLVE, "tiny", {"solver_steps": 3}, "scatter"),
    ],
    ids=["parts", "rows", "rows without positions", "solver"],
)
def test_optional_forms_agree_with_torch(
    name, preset, sizes, kv_cache, some_packages, tiny_checkpoint, second_checkpoint
):
    sized = StepSizes(kv_length=32, prefill_chunks=(1, 4), **sizes)
    folder = some_packages(f"core-ai-{name}-{kv_cache}", preset, [name], sized, ("fp32",), kv_cache)
    checkpoint = Checkpoint.open(tiny_checkpoint if preset == "tiny" else second_checkpoint)
    declared = declare_step_models(checkpoint.architecture, sized)[name]
    step = build_step(declared, loaded_modules(checkpoint, declared, sized), checkpoint.architecture, sized)
    model = CoreAIWorker(folder, "fp32", [name]).step_models[name]
    # Alternate chunk sizes: each function writes the state that the others read.
    chunks = (1, 0, 1, 0) if declared.state else (0,)
    for found, expected in beside_torch(declared, step, model, chunks):
        for values, reference in zip(found, expected, strict=True):
            np.testing.assert_allclose(values, reference, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("missing", ["coreai_torch", "coreai_opt"])
def test_missing_converter_is_a_one_line_error(missing, tiny_checkpoint, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(InputError, match=r'pip install "voxcpm-coreml\[convert-coreai\]".* \(Python 3\.11'):
        convert(
            Checkpoint.open(tiny_checkpoint), tmp_path / "b", precisions=["fp32"], sizes=TINY, target=CORE_AI
        )
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def folders(some_packages):
    """Compressed programs of the "tiny" checkpoint, by their step model."""
    precisions = {names.BASE_LM_STEP: ("int8", "int4"), names.AUDIO_VAE_DECODER: ("int8",)}
    return {
        name: some_packages(f"core-ai-small-{name}", "tiny", [name], TINY, given)
        for name, given in precisions.items()
    }


def rounded(weight, bits):
    """A weight (outputs, inputs, …) in symmetric blocks of 32 inputs and whole kernels, as coreai-opt documents it."""
    blocks = weight.unflatten(1, (-1, 32))
    scale = blocks.abs().amax(tuple(range(2, blocks.dim())), keepdim=True) / (2**bits - 1) * 2
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return ((blocks / scale).round().clamp(low, high) * scale).flatten(1, 2)


def compress(step, precision):
    """Round each large weight whose inputs are whole blocks; of transposed convolutions by their phases."""
    use_phases(step)
    for name, module in step.named_modules():
        weight = getattr(module, "weight", None)
        if not isinstance(module, nn.Linear | nn.Conv1d) or weight.numel() <= 2048 or weight.size(1) % 32:
            continue
        four = (
            precision == "int4" and ".layers." in name and not name.endswith(("k_proj", "v_proj", "o_proj"))
        )
        module.weight.data = rounded(weight, 4 if four else 8)


@pytest.mark.parametrize(
    ("name", "precision"),
    [(names.BASE_LM_STEP, "int8"), (names.BASE_LM_STEP, "int4"), (names.AUDIO_VAE_DECODER, "int8")],
)
def test_compressed_programs_equal_torch_with_rounded_weights(
    folders, tiny_checkpoint, name, precision, tmp_path, monkeypatch
):
    """56 to 59 dB, limited by fp16 arithmetic. Without rounded weights it would be 20 to 41 dB."""
    monkeypatch.setenv("VOXCPM_COREML_CACHE", str(tmp_path))
    checkpoint = Checkpoint.open(tiny_checkpoint)
    declared = declare_step_models(checkpoint.architecture, TINY)[name]
    model = CoreAIWorker(folders[name], precision, [name]).step_models[name]

    def against(step):
        calls = beside_torch(declared, step, model, chunks=(0, 0, 0, 0))
        return agreement(*(np.concatenate([call[side][0].ravel() for call in calls]) for side in (0, 1)))

    step = build_step(declared, loaded_modules(checkpoint, declared, TINY), checkpoint.architecture, TINY)
    plain = against(step)
    compress(step, precision)
    alike = against(step)
    assert alike.snr_db > 50 > plain.snr_db


def test_full_disk_leaves_no_bundle(tiny_checkpoint, tmp_path, monkeypatch, capsys):
    """At the second program, where Core AI's writer would abort the process; the first one is kept."""
    two = ("audio_vae_decoder", "locdit_step")
    usage, asked, declare = shutil.disk_usage(tmp_path), [], conversion.declare_step_models

    def full(path):
        asked.append(path)
        return usage._replace(free=1000 if len(asked) > 1 else usage.free)

    def declared(a, sizes, **_):
        return {name: declare(a, sizes)[name] for name in two}

    monkeypatch.setattr(conversion, "declare_step_models", declared)
    monkeypatch.setattr(packages.shutil, "disk_usage", full)
    words = ("--target", "macos27", "--precision", "fp32", "--max-length", "48", "--prefill-chunk", "1")
    assert cli.main(["convert", str(tiny_checkpoint), "-o", str(tmp_path / "b"), *words]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert re.search(r"no disk space for VoxCPM .*: \d+\.\d MB needed, 0\.0 MB free", said)
    assert [path.name for path in tmp_path.iterdir()] == [".b.partial"]
    assert len(list(tmp_path.glob(".b.partial/bundle/fp32/*.aimodel"))) == 1
