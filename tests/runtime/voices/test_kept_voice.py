"""A saved voice works with every bundle of its generation: other precisions, another target."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from voxcpm_runtime.voxcpm import VoxCPM
from voxcpm_validation.measures import agreement

GIVEN = {"seed": 3, "min_len": 6, "max_len": 6, "retry_badcase": False}


@pytest.mark.parametrize(("bundle", "precision"), [("tiny_bundle", "fp32"), ("tiny_bundle_15", "fp16")])
def test_a_voice_speaks_on_every_bundle_of_its_generation(
    request: pytest.FixtureRequest, tiny_bundle: Path, tmp_path: Path, bundle: str, precision: str
) -> None:
    clip = (np.random.default_rng(0).standard_normal(1600).astype(np.float32) * 0.1, 16000)
    path = tmp_path / "ada.voice"
    with VoxCPM.from_bundle(tiny_bundle, precision="int8") as tts:
        tts.create_voice(clip, "the you and ", name="ada").save(path)
    with VoxCPM.from_bundle(request.getfixturevalue(bundle), precision=precision) as tts:
        first = tts.speak("and the world", voice=path, **GIVEN).latents
        own = tts.speak("and the world", clip, "the you and ", **GIVEN).latents
        other = tts.speak("and the world", **GIVEN).latents

    # The voice's latents are from an int8 encoder; they differ from the bundle's own by rounding.
    assert agreement(first, own).correlation > 0.95
    assert not np.array_equal(first, other)
