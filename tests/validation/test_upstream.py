from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from voxcpm_conversion.checkpoint import Checkpoint
from voxcpm_conversion.default_bundle import DEFAULT_CHECKPOINT
from voxcpm_conversion.synthetic import write_synthetic_checkpoint
from voxcpm_conversion.synthetic_presets import presets, write_tokenizer
from voxcpm_validation.upstream import load_upstream, upstream_generate

pytestmark = pytest.mark.skipif(
    find_spec("voxcpm") is None, reason="needs upstream's code: pip install --no-deps voxcpm==2.0.3"
)

TEXT = "The world today, 你好 世界."
PATCHES = 6


class Speaker:
    """Upstream's model of a synthetic checkpoint, and the results of a zero-shot run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model: Any = load_upstream(folder)
        self.audio, self.latents = upstream_generate(
            self.model, TEXT, rng=np.random.default_rng(0), max_len=PATCHES
        )


@pytest.fixture(scope="module", params=["tiny", "tiny-2", "tiny-kv"])
def speaker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Speaker:
    folder = tmp_path_factory.mktemp(request.param)
    tokenizer = write_tokenizer(tmp_path_factory.mktemp("tokenizer"))
    return Speaker(write_synthetic_checkpoint(folder, presets()[request.param], seed=0, tokenizer=tokenizer))


@pytest.fixture
def prompt(speaker: Speaker, tmp_path: Path) -> Path:
    """A prompt of two and a half patches of stereo noise, at another sample rate than the model's."""
    model = speaker.model
    seconds = 2.5 * model.patch_size * model.chunk_size / model.audio_vae.sample_rate
    samples = 0.1 * np.random.default_rng(3).standard_normal((round(seconds * 48000), 2))
    soundfile.write(tmp_path / "prompt.wav", samples, 48000)
    return tmp_path / "prompt.wav"


def test_upstream_has_every_weight_of_the_synthetic_checkpoint(speaker: Speaker) -> None:
    checkpoint = Checkpoint.open(speaker.folder)
    loaded = {
        name: value for name, value in speaker.model.state_dict().items() if not name.endswith("boundaries")
    }
    plain = {name for name in loaded if not name.endswith(("weight_g", "weight_v"))}
    folded = {name.removesuffix("_g") for name in loaded if name.endswith("weight_g")}
    assert plain | folded == set(checkpoint.shapes())
    assert all(torch.equal(loaded[name], checkpoint.tensor(name)) for name in plain)


def test_noise_comes_from_rng_once_a_patch(speaker: Speaker) -> None:
    sizes: list[tuple[int, ...]] = []

    class Recorded:
        def __init__(self) -> None:
            self.rng = np.random.default_rng(0)

        def standard_normal(self, size: tuple[int, ...]) -> np.ndarray:
            sizes.append(size)
            return self.rng.standard_normal(size)

    audio, latents = upstream_generate(speaker.model, TEXT, rng=Recorded(), max_len=PATCHES)
    assert sizes == [(1, speaker.model.feat_dim, speaker.model.patch_size)] * PATCHES
    assert np.array_equal(audio, speaker.audio)
    assert np.array_equal(latents, speaker.latents)


def test_latents_after_a_prompt_are_the_generated_ones_alone(speaker: Speaker, prompt: Path) -> None:
    audio, latents = upstream_generate(
        speaker.model,
        TEXT,
        prompt_wav=prompt,
        prompt_text="Hi. ",
        rng=np.random.default_rng(0),
        max_len=PATCHES,
    )
    assert latents.shape == speaker.latents.shape
    assert audio.shape == speaker.audio.shape
    # The last samples come from the last latents: upstream's decoder gives the same audio for these.
    frames = torch.from_numpy(latents.reshape(-1, speaker.model.feat_dim).T.copy())[None]
    with torch.no_grad():
        decoded = speaker.model.audio_vae.decode(frames).numpy().reshape(-1)
    hop = len(audio) // PATCHES
    assert np.corrcoef(decoded[-hop:], audio[-hop:])[0, 1] > 0.99


def test_capitals_survive_a_tokenizer_that_lowers_them() -> None:
    model = load_upstream(DEFAULT_CHECKPOINT)
    assert model.text_tokenizer("HELLO.") == model.text_tokenizer("hello.")
    assert len(model.text_tokenizer("HELLO.")) == len("▁hello.")
