"""A bundle converted for a batch speaks several utterances at once, each equal to its single run."""

from __future__ import annotations

import numpy as np
import pytest

from voxcpm_runtime.voxcpm import VoxCPM

GIVEN = [
    {"text": "one two three.", "seed": 1, "min_len": 6, "max_len": 6},
    {"text": "four.", "seed": 2, "min_len": 9, "max_len": 9, "cfg_value": 1.3},
    {"text": "five six.", "seed": 3, "min_len": 4, "max_len": 4, "inference_timesteps": 4},
    {"text": "seven eight nine ten.", "seed": 4, "min_len": 7, "max_len": 7, "temperature": 0.7},
    {"text": "eleven.", "seed": 5, "retry_badcase": False, "max_len": 12},
]


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_an_item_does_not_depend_on_its_neighbours(tiny_batch_bundle, precision):
    with VoxCPM.from_bundle(tiny_batch_bundle, precision=precision) as tts:
        assert tts.bundle.manifest.sizes.batch == 3
        prompt = (tts.generate("a b c", seed=9, min_len=5, max_len=5), tts.sample_rate)
        given = [
            *GIVEN,
            {
                "text": "and so on.",
                "prompt_wav_path": prompt,
                "prompt_text": "a b c ",
                "seed": 6,
                "max_len": 5,
            },
        ]

        together = tts.batch(given)

        for speech, arguments in zip(together, given, strict=True):
            alone = tts.speak(**arguments)
            np.testing.assert_array_equal(speech.latents, alone.latents)
            np.testing.assert_array_equal(speech.audio, alone.audio)
            assert speech.stopped == alone.stopped


def test_it_speaks_as_the_bundle_for_one(tiny_batch_bundle, tiny_bundle):
    with VoxCPM.from_bundle(tiny_batch_bundle, precision="fp32") as batched:
        together = batched.batch(GIVEN)
    with VoxCPM.from_bundle(tiny_bundle, precision="fp32") as tts:
        for speech, arguments in zip(together, GIVEN, strict=True):
            alone = tts.speak(**arguments)
            np.testing.assert_allclose(speech.latents, alone.latents, atol=1e-4)
            assert (len(speech.latents), speech.stopped) == (len(alone.latents), alone.stopped)
