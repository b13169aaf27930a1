"""A dialogue compared with upstream's `merge_prompt_cache`: each utterance becomes part of the next one's prompt."""

import numpy as np
import pytest
import soundfile
import torch

from voxcpm_runtime.voxcpm import VoxCPM
from voxcpm_validation.measures import agreement
from voxcpm_validation.upstream import load_upstream, use_noise

TURNS = ("the you and ", "the world and you. ", "you and the world")
KEPT = {"min_len": 6, "max_len": 6}


@pytest.mark.parametrize(
    ("generation", "recorded"), [("tiny", "prompt"), ("second", "prompt"), ("second", "reference")]
)
def test_dialogue_equals_upstream(request, tmp_path, generation, recorded):
    bundle, checkpoint = (
        request.getfixturevalue(f"{generation}_{kind}") for kind in ("bundle", "checkpoint")
    )
    model, tts = load_upstream(checkpoint, max_length=128), VoxCPM.from_bundle(bundle, precision="fp32")
    rate = tts.bundle.architecture.input_sample_rate
    clip = tmp_path / "clip.wav"
    samples = np.random.default_rng(0).standard_normal(rate // 8).astype(np.float32) * 0.1
    soundfile.write(clip, samples, rate, subtype="FLOAT")
    if recorded == "prompt":
        voice = tts.create_voice(clip, "and the ", name="ada")
        cache = model.build_prompt_cache(prompt_wav_path=str(clip), prompt_text="and the ")
    else:
        voice = tts.create_voice(clip, name="ada")
        cache = model.build_prompt_cache(reference_wav_path=str(clip))
    for seed, text in enumerate(TURNS):
        speech = tts.speak(text, voice=voice, rng=np.random.default_rng(seed), retry_badcase=False, **KEPT)
        with use_noise(np.random.default_rng(seed)):
            _, _, features = model.generate_with_prompt_cache(text, cache, **KEPT)
        # VoxCPM 0.5B and 1.5 return patches of the prompt with the generated ones: see `upstream_generate`.
        generated = features.float().numpy().reshape(-1, model.patch_size, model.feat_dim)[-KEPT["max_len"] :]
        assert agreement(speech.latents, generated).correlation >= 0.99999
        voice = voice.extended(text, speech.latents)
        cache = model.merge_prompt_cache(cache, text, torch.from_numpy(generated.copy()))
    assert voice.transcript == cache["prompt_text"]
