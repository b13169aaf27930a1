import numpy as np
import pytest
import torch
from torch import nn

from voxcpm_constants.manifest import Manifest
from voxcpm_constants.step_models import AUDIO_VAE_ENCODER, LOCDIT_STEP
from voxcpm_conversion.checkpoint import Checkpoint
from voxcpm_conversion.gate import below, figures, quantise
from voxcpm_conversion.recording import TEXT, Recording, hearing
from voxcpm_runtime.model.sequence import build_sequence
from voxcpm_runtime.options import GenerationOptions
from voxcpm_runtime.voxcpm import VoxCPM

RATE = 16000


def test_recorded_sentence_is_what_the_loop_computes(tiny_bundle, tiny_checkpoint):
    """The runtime's own loop in fp32, teacher-forced with the recorded patches, predicts the recorded ones."""
    manifest = Manifest.read(tiny_bundle)
    recording = Recording(Checkpoint.open(tiny_checkpoint), manifest, tiny_bundle)
    patches = recording.reference(manifest.step_models[AUDIO_VAE_ENCODER])["latents"]
    expected = recording.reference(manifest.step_models[LOCDIT_STEP])["patch"]
    tts = VoxCPM.from_bundle(tiny_bundle, "fp32")
    ids = tts.bundle.tokenizer(TEXT)[: 128 - len(patches) - 1]

    class Noise:
        index = -1

        def standard_normal(self, size):
            self.index += 1
            return np.random.default_rng(self.index).standard_normal(size)

    prefilled = tts.driver.prefill(build_sequence(ids, patches.shape[1:]))
    found = tts.driver.generate_patches(
        prefilled, GenerationOptions(), Noise(), len(expected), teacher=patches
    )
    for patch, recorded in zip(found, expected, strict=True):
        np.testing.assert_allclose(patch.latents, recorded, atol=1e-3 * np.abs(recorded).max())


def test_figures_see_a_flipped_stop_a_tonal_sibilant_and_a_value_that_is_not_finite():
    logits = np.array([[1.0, 1.001], [1.0, 0.0]], np.float32)
    flipped = figures(
        {"stop_logits": logits + np.float32([[0.002, 0], [0, 0]])}, {"stop_logits": logits}, RATE
    )
    assert flipped["stop agreement"] == 0.5
    noise = np.random.default_rng(0).standard_normal(RATE).astype(np.float32)
    tone = 3 * np.sin(2 * np.pi * 6000 / RATE * np.arange(RATE)).astype(np.float32)
    metallic = figures({"audio": noise + tone}, {"audio": noise}, RATE)
    assert metallic["audio 1-4 kHz"] > 60
    assert metallic["audio 4-8 kHz"] < 5
    assert {"flatness", "audio", "audio 4-8 kHz"} <= {*below(metallic, "int8")}
    assert below(figures({"audio": noise}, {"audio": noise}, RATE), "int8") == []
    assert below(figures({"hidden": noise * np.nan}, {"hidden": noise}, RATE), "int8") == ["hidden"]


def test_error_of_large_and_nearly_equal_logits_is_that_of_their_difference():
    generator = torch.Generator().manual_seed(0)
    common, *weights = (torch.randn(rows, 64, generator=generator) for rows in (1, 2, 64))
    head, other = (nn.Linear(64, len(weight), bias=False) for weight in weights)
    head.weight.data, other.weight.data = weights[0] + 100 * common, weights[1]
    x = torch.randn(50, 64, generator=generator)
    with hearing(nn.ModuleDict({"head": head, "other": other}).requires_grad_(False)) as heard:
        head(x), other(x)
    assert quantise(head, "int8", heard["head"]) > 100 * quantise(other, "int8", heard["other"]) > 0


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Linear(48, 32), (40, 48)),
        (nn.Conv1d(48, 32, 7), (1, 48, 400)),
        (nn.Conv1d(48, 32, 6, stride=3), (1, 48, 400)),
        (nn.Conv1d(32, 32, 7, groups=32), (1, 32, 400)),
        (nn.ConvTranspose1d(48, 32, 6, stride=3, padding=3), (1, 48, 400)),
    ],
)
def test_expected_error_of_a_layer_is_that_of_its_outputs(layer, shape):
    generator = torch.Generator().manual_seed(0)
    for parameter in layer.parameters():
        parameter.requires_grad_(False).copy_(torch.randn(parameter.shape, generator=generator))
    x = torch.randn(shape, generator=generator)
    x[:, 0] *= 10
    with hearing(nn.ModuleList([layer])) as heard:
        before = layer(x)
    expected = quantise(layer, "int8", heard["0"])
    channels = -1 if x.ndim == 2 else 1
    found = (layer(x) - before).var(channels).mean() / before.var(channels).mean()
    assert expected == pytest.approx(float(found), rel=0.15)
