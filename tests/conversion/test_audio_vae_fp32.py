"""`convert --audio-vae-fp32`: the AudioVAE in float32 in a bundle whose other packages are int8."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from voxcpm_constants.manifest import MODEL_CARD_FILE, Manifest
from voxcpm_constants.step_models import AUDIO_VAE_DECODER, AUDIO_VAE_ENCODER
from voxcpm_runtime.backends.loading import load_portable_step_model
from voxcpm_validation.lint.bundle import lint_bundle
from voxcpm_validation.validate import validate_bundle

AUDIO_VAE = (AUDIO_VAE_ENCODER, AUDIO_VAE_DECODER)
TEXT = "the you and the world"


@pytest.fixture(scope="module")
def mixed_bundle(tiny_checkpoint: Path, conversion: Callable[..., Path], command: Callable[..., Any]) -> Path:
    def make(folder: Path, checkpoint: Path, *options: str) -> None:
        done = command("convert", checkpoint, "-o", folder, *options)
        assert done.returncode == 0, done.stderr

    options = ("--precision", "int8", "--target", "macos15", "--max-length", "128", "--audio-vae-fp32")
    return conversion("bundle-tiny-mixed", make, tiny_checkpoint, *options)


@pytest.mark.parametrize("name", AUDIO_VAE)
def test_the_audio_vae_is_that_of_fp32_to_the_last_bit(
    mixed_bundle: Path, tiny_bundle: Path, name: str
) -> None:
    rng = np.random.default_rng(0)
    (declared,) = Manifest.read(mixed_bundle).step_models[name].inputs
    ours, theirs = (
        load_portable_step_model(folder, Manifest.read(folder), precision, name, threads=1)
        for folder, precision in ((mixed_bundle, "int8"), (tiny_bundle, "fp32"))
    )
    states = ours.new_state(), theirs.new_state()
    for _ in range(3):
        inputs = {declared.name: rng.standard_normal(declared.shape_at(0), np.float32)}
        found, expected = ours(inputs, states[0]), theirs(inputs, states[1])
        for output in expected:
            np.testing.assert_array_equal(found[output], expected[output])


def test_it_is_validated_by_the_floors_of_fp32(mixed_bundle: Path, tiny_checkpoint: Path) -> None:
    report = validate_bundle(mixed_bundle, str(tiny_checkpoint), text=TEXT, patches=4)

    judged = {(s.step_model, s.arithmetic): s for s in report.steps if s.floors_of == "fp32"}
    assert judged.keys() == {(name, "plain") for name in AUDIO_VAE}
    assert min(s.correlation for s in judged.values()) > 0.9999999
    worse = [s.model_copy(update={"outputs": _halved(s.outputs)}) for s in judged.values()]
    assert len(report.model_copy(update={"steps": tuple(worse)}).failures()) == 2


def _halved(outputs: dict[str, Any]) -> dict[str, Any]:
    return {name: a.model_copy(update={"correlation": 0.99999}) for name, a in outputs.items()}


def test_lint_inspect_and_the_model_card_know_it(mixed_bundle: Path, command: Callable[..., Any]) -> None:
    assert "float32" not in {row[0] for row in lint_bundle(str(mixed_bundle)).rows()}
    assert "int8; AudioVAE in fp32" in (mixed_bundle / MODEL_CARD_FILE).read_text(encoding="utf-8")

    shown = command("inspect", mixed_bundle).stdout
    assert "computes in float32 in every precision" in shown
    assert shown.count(" state ") >= 4
