"""Utterances that share calls of step models: each is the same as alone, whatever the others do."""

from __future__ import annotations

import numpy as np
import pytest

from voxcpm_constants.errors import BundleError, InputError
from voxcpm_runtime.model.flow_matching import time_embedding, time_span
from voxcpm_runtime.speech.cancellation import Cancelled, CancelToken

WITH_CACHE = ("base_lm_step", "residual_lm_step")


@pytest.fixture
def prompt_audio():
    return np.random.default_rng(0).standard_normal(90).astype(np.float32) * 0.1, 1000


def utterances(prompt_audio):
    return [
        {"text": "hello there.", "seed": 1, "min_len": 4, "max_len": 9},
        {"text": "hi", "seed": 2, "min_len": 7, "max_len": 7, "inference_timesteps": 4},
        {
            "text": "who?",
            "prompt_wav_path": prompt_audio,
            "prompt_text": "so it is ",
            "seed": 3,
            "max_len": 12,
        },
        {"text": "no.", "seed": 4, "min_len": 15, "max_len": 15, "cfg_value": 1.2, "temperature": 0.5},
        {"text": "good day to you.", "seed": 5, "max_len": 5, "use_cfg_zero_star": False},
        {"text": "bye", "seed": 6, "retry_badcase": False},
        {"text": "a", "seed": 7, "max_len": 8},
    ]


@pytest.mark.parametrize("together", [1, 3, 7])
def test_each_utterance_is_as_it_would_be_alone(tts, batched, prompt_audio, together):
    given = utterances(prompt_audio)[:together]

    speeches = batched.batch(given)

    for speech, arguments in zip(speeches, given, strict=True):
        alone = tts.speak(**arguments)
        assert (len(speech.latents), speech.stopped, speech.seed) == (
            len(alone.latents),
            alone.stopped,
            alone.seed,
        )
        np.testing.assert_allclose(speech.latents, alone.latents, atol=1e-5)
        np.testing.assert_array_equal(speech.audio, batched.generate(**arguments))


def test_those_that_ask_for_the_same_are_one_call(batched, batch_models):
    patches = 8
    given = [
        {"text": "hi", "seed": seed, "min_len": patches, "max_len": patches, "retry_badcase": False}
        for seed in range(3)
    ]

    batched.batch(given)

    # On busy cores an utterance may be some patches late; three that shared nothing would take 16 more.
    late = 7
    assert 9 * patches <= len(batch_models["locdit_step"].calls) <= 9 * (patches + late)
    for name in WITH_CACHE:
        decoding = [shape for shape in batch_models[name].calls if shape[1] == 1]
        assert patches - 1 <= len(decoding) <= patches - 1 + late
    batch = batched.batch_driver.sizes.batch
    encoded = [shape[1] for shape in batch_models["feat_encoder"].calls]
    assert set(encoded) == {batch}
    assert patches - 1 <= len(encoded) <= patches - 1 + late


def test_a_bundle_without_a_batch_speaks_them_one_after_another(tts, prompt_audio):
    given = utterances(prompt_audio)

    for speech, arguments in zip(tts.batch(given), given, strict=True):
        np.testing.assert_array_equal(speech.audio, tts.generate(**arguments))


def test_what_cannot_be_spoken_is_refused_by_its_number_before_any_work(batched, batch_models):
    with pytest.raises(InputError, match=r"^utterance 2: the text is empty"):
        batched.batch(["hi", {"text": " "}])

    assert not any(model.calls for model in batch_models.values())


def test_an_error_of_one_leaves_the_others_alone(tts, batched, batch_models):
    """The second utterance, known by its Euler steps, gets NaN; the error is raised when the others are done."""
    step = batch_models["locdit_step"]
    healthy, sick = step.model.function, time_embedding(time_span(3)[2:3], 6)
    step.model.function = lambda inputs, state: {
        "velocity": healthy(inputs, state)["velocity"]
        * np.float32(np.nan if np.array_equal(inputs["t_embedding"][:1], sick) else 1)
    }
    given = [{"text": text, "seed": 1, "max_len": 9} for text in ("hi", "who?", "no.")]
    given[1]["inference_timesteps"] = 3
    told = []
    given[2]["progress"] = told.append

    with pytest.raises(BundleError, match="patch 0 is not finite"):
        batched.batch(given)

    assert told[-1].patches == len(tts.speak(**given[2]).latents)


def test_one_may_be_cancelled_while_the_others_go_on(tts, batched):
    token = CancelToken()
    token.cancel()
    given = [
        {"text": "hi", "seed": 1, "max_len": 9, "cancel": token, "keep_partial": True},
        {"text": "who?", "seed": 2, "max_len": 9},
        {"text": "no.", "seed": 3, "max_len": 9},
    ]

    cancelled, *others = batched.batch(given)

    assert (cancelled.cancelled, len(cancelled.audio)) == (True, 0)
    for speech, arguments in zip(others, given[1:], strict=True):
        np.testing.assert_allclose(speech.latents, tts.speak(**arguments).latents, atol=1e-5)


def test_after_a_cancellation_no_other_is_begun(tts, models, prompt_audio):
    token = CancelToken()
    token.cancel()
    given = {"text": "hi", "prompt_wav_path": prompt_audio, "prompt_text": "a ", "cancel": token}

    outcomes = dict(tts.speak_each([given] * 5))

    assert [type(outcomes[index]) for index in range(5)] == [Cancelled] * 5
    assert not any(model.calls for model in models.values())


def test_a_slot_near_the_end_of_its_cache_keeps_its_rows_while_another_is_prefilled(tts, batched):
    """One slot prefills a chunk of 16 while 47 of the other's 48 positions are taken."""
    given = [
        {"text": "a", "seed": 1, "min_len": 45, "max_len": 45, "retry_badcase": False, "segment_tokens": 1000,
         "retry_badcase_ratio_threshold": 99.0},
        {"text": "b", "seed": 2, "min_len": 44, "max_len": 44, "retry_badcase": False, "segment_tokens": 1000,
         "retry_badcase_ratio_threshold": 99.0},
        *({"text": "hello there.", "seed": seed, "min_len": 2, "max_len": 3} for seed in range(3, 14)),
    ]  # fmt: skip

    for speech, arguments in zip(batched.batch(given), given, strict=True):
        np.testing.assert_allclose(speech.latents, tts.speak(**arguments).latents, atol=1e-4)
