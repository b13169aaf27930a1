"""A bundle converted for a batch speaks several utterances at once, each equal to its single run."""

from __future__ import annotations

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from voxcpm_runtime.speech.cancellation import Cancelled, CancelToken
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


ARRIVALS = 40


def arrival(rng: np.random.Generator, prompt: Any) -> dict[str, Any]:
    """Arguments of a speech, and what becomes of it: how it is read, when it is cancelled."""
    least = int(rng.integers(0, 9))
    given = {
        "text": str(rng.choice(["one two three.", "four.", "five six?", "seven eight nine ten."])),
        "seed": int(rng.integers(100)),
        "min_len": least,
        "max_len": least + int(rng.integers(1, 5)),
        "inference_timesteps": int(rng.choice([4, 6])),
        "cfg_value": float(rng.choice([1.0, 2.0])),
        "retry_badcase": bool(rng.random() < 0.3),
    }
    if rng.random() < 0.3:
        given |= {"prompt_wav_path": prompt, "prompt_text": "a b c "}
    fate = str(rng.choice(["whole", "read", "read", "slow", "closed", "cancelled", "cancelled at a time"]))
    return {"given": given, "fate": fate, "after": float(rng.random()), "patches": int(rng.integers(0, 6))}


def test_whoever_comes_and_goes_each_says_what_it_says_alone(tiny_batch_bundle: Any) -> None:
    """More arrivals than slots, with prompts, retries, slow readers, and some that end in the middle of others."""
    rng = np.random.default_rng(0)
    with VoxCPM.from_bundle(tiny_batch_bundle, precision="int8") as tts:
        prompt = (tts.generate("a b c", seed=9, min_len=5, max_len=5), tts.sample_rate)
        arrivals = [arrival(rng, prompt) for _ in range(ARRIVALS)]

        def heard(index: int, batch: Any) -> np.ndarray | None:
            """What was heard of an arrival until its end; None if it was refused its result."""
            one, token = arrivals[index], CancelToken()
            time.sleep(one["after"])
            plan = tts.plan(**one["given"], cancel=token)
            if one["fate"] == "whole":
                return batch.speak_plan(plan).audio
            if one["fate"] == "cancelled at a time":
                with ThreadPoolExecutor(1) as threads, contextlib.suppress(Cancelled):
                    speech = threads.submit(batch.speak_plan, plan)
                    time.sleep(0.1 * one["after"])
                    token.cancel()
                    return speech.result().audio
                return None
            chunks = [np.zeros(0, np.float32)]
            stream = batch.stream_plan(plan, chunk_patches=1)
            with contextlib.closing(stream), contextlib.suppress(Cancelled):
                for number, chunk in enumerate(stream):
                    chunks.append(chunk)
                    if number == one["patches"]:
                        if one["fate"] == "slow":
                            time.sleep(0.3)
                        elif one["fate"] == "cancelled":
                            token.cancel()
                        elif one["fate"] == "closed":
                            break
            return np.concatenate(chunks)

        with tts.continuous_batch() as batch, ThreadPoolExecutor(ARRIVALS) as threads:
            outcomes = list(threads.map(lambda index: heard(index, batch), range(ARRIVALS)))

        whole = 0
        for one, audio in zip(arrivals, outcomes, strict=True):
            retries = {} if "whole" in one["fate"] or "time" in one["fate"] else {"retry_badcase": False}
            alone = tts.generate(**{**one["given"], **retries})
            if audio is not None:
                np.testing.assert_array_equal(audio, alone[: len(audio)], str(one))
                if one["fate"] in ("whole", "read", "slow"):
                    assert len(audio) == len(alone), one
                whole += len(audio) == len(alone)
        assert whole > ARRIVALS // 2
