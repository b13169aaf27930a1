"""VoxCPM2's and 0.5B's structure and the built-in voice on Apple's Core AI runtime, against upstream."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from core_ai_agreement import TEXT, Reference, check_fp32, check_utterances, recorded
from voxcpm_constants.step_models import STEP_MODEL_NAMES, StepSizes
from voxcpm_conversion.checkpoint import Checkpoint
from voxcpm_conversion.convert import convert
from voxcpm_conversion.default_bundle import DEFAULT_CHECKPOINT
from voxcpm_conversion.synthetic import write_synthetic_checkpoint
from voxcpm_conversion.synthetic_presets import presets, write_tokenizer
from voxcpm_runtime.commands import cli
from voxcpm_runtime.voxcpm import VoxCPM
from voxcpm_validation.upstream import load_upstream
from voxcpm_validation.validate import validate_bundle

pytest.importorskip("coreai_torch", exc_type=ImportError)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("VOXCPM_COREML_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def second(second_checkpoint: Path, second_bundle_27: Path) -> tuple[Any, Reference]:
    return recorded(second_checkpoint, second_bundle_27)


@pytest.mark.parametrize("name", STEP_MODEL_NAMES)
def test_step_models_of_the_second_generation_equal_upstream_at_every_length(
    second_bundle_27: Path, second: tuple[Any, Reference], name: str
) -> None:
    check_fp32(second_bundle_27, second[1], name)


def test_utterances_of_the_second_generation_in_every_mode(
    second: tuple[Any, Reference], second_bundle_27: Path, second_bundle: Path
) -> None:
    modes = check_utterances(
        second[0], VoxCPM.from_bundle(second_bundle_27, "fp32"), VoxCPM.from_bundle(second_bundle, "fp32")
    )
    assert len(modes) == 6


@pytest.fixture
def small() -> Iterator[Path]:
    """A synthetic checkpoint of 0.5B's properties: "tiny-kv" with one layer and one stage of the AudioVAE less."""
    config = presets()["tiny-kv"]
    config["lm_config"]["num_hidden_layers"] = 1
    for local in ("encoder_config", "dit_config"):
        config[local]["num_layers"] = 1
    config["audio_vae_config"] |= {"encoder_rates": [5, 4], "decoder_rates": [4, 5]}
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "checkpoint"
        write_tokenizer(Path(folder) / "tokenizer")
        write_synthetic_checkpoint(
            checkpoint, config, seed=0, dtype="float32", tokenizer=Path(folder) / "tokenizer"
        )
        yield checkpoint


def test_utterances_of_half_a_billion_parameters_properties_with_a_lora(
    small: Path, write_lora: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """One key/value head of another size, plain convolutions, patches of four frames; converted by the command."""
    lora = write_lora(small.with_name("lora"), small, enable_lm=True, enable_dit=True, enable_proj=True)
    bundle, portable, speech = (small.with_name(name) for name in ("bundle", "portable", "speech.wav"))
    sizes = ("--max-length", "128", "--prefill-chunk", "1", "--precision", "fp32", "--solver-steps", "10")
    words = ("convert", small, "-o", bundle, "--target", "macos27", "--lora", lora, *sizes)
    assert cli.main([str(word) for word in words]) == 0
    assert "merged lora (r 8, alpha 16)" in " ".join(capsys.readouterr().err.split())
    merged = Checkpoint.open(small, lora=lora)
    shortest = StepSizes(kv_length=128, prefill_chunks=(1,), encode_patches=(1,))
    convert(merged, portable, precisions=("fp32",), sizes=shortest)

    model, reference = recorded(small, bundle, lora=merged.lora)
    for name in STEP_MODEL_NAMES:
        check_fp32(bundle, reference, name)
    modes = check_utterances(model, VoxCPM.from_bundle(bundle, "fp32"), VoxCPM.from_bundle(portable, "fp32"))
    assert modes == ["zero-shot", "continuation"]
    words = ("generate", bundle, "--text", TEXT, "--max-len", 2, "--seed", 3, "-o", speech)
    assert cli.main([str(word) for word in words]) == 0
    found, _ = soundfile.read(speech)
    with VoxCPM.from_bundle(portable, "fp32") as tts:
        expected = tts.generate(TEXT, max_len=2, seed=3)
    # A file has 16 bits.
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)
    assert np.abs(found).max() > 1e-3


@pytest.fixture(scope="module")
def built_in_voice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built-in") / "bundle"
    opened = Checkpoint.open(str(DEFAULT_CHECKPOINT))
    convert(opened, folder, precisions=("fp16", "fp32"), sizes=StepSizes(), target="macOS27")
    return folder


def test_half_arithmetic_and_bytes_reach_the_floors_of_linuxs_runtime(built_in_voice: Path) -> None:
    """Every step model at every length, with the text and seed that `validate` takes."""
    report = validate_bundle(built_in_voice, str(DEFAULT_CHECKPOINT), precisions=["fp16"])
    assert report.failures() == []


def test_utterances_in_fp32_equal_upstreams_and_the_portable_executors(
    built_in_voice: Path, speaking_bundle: Path
) -> None:
    model = load_upstream(DEFAULT_CHECKPOINT, max_length=StepSizes().kv_length)
    opened = (VoxCPM.from_bundle(folder, "fp32") for folder in (built_in_voice, speaking_bundle))
    modes = check_utterances(model, *opened, text="the river runs slowly to the sea.")
    assert modes == ["zero-shot", "continuation"]
