"""Continuity of streamed audio: a discontinuity at a chunk boundary is detected."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from voxcpm_runtime.model.audio_vae import patch_decoder
from voxcpm_validation.golden.cases import (
    CASES,
    case_arguments,
    open_voice,
)
from voxcpm_validation.golden.continuity import continuity, monolithic
from voxcpm_validation.golden.examination import continuity_failures


def test_a_decoder_that_forgets_between_chunks_is_not_continuous(speaking_bundle: Path) -> None:
    tts = open_voice(speaking_bundle, "int8", "portable")
    case = CASES[0]
    latents = tts.speak(**case_arguments(case), seed=case.seed).latents
    patch = tts.bundle.architecture.patch_output_samples
    decoder = tts.driver.models["audio_vae_decoder"]
    whole = monolithic(tts.driver, latents, latents[:0])
    streaming = patch_decoder(decoder)
    streamed = np.concatenate([streaming(one) for one in latents])
    forgetful = np.concatenate([patch_decoder(decoder)(one) for one in latents])
    boundaries = range(patch, len(whole), patch)

    assert list(continuity_failures(continuity(streamed, whole, boundaries))) == []
    first, *_ = continuity_failures(continuity(forgetful, whole, boundaries))
    assert first.startswith("correlation with the monolithic waveform 0.")


def test_a_jump_at_a_boundary_is_reported() -> None:
    rng = np.random.default_rng(0)
    whole = (0.1 * rng.standard_normal(4000)).astype(np.float32)
    rounded = whole + (1e-5 * rng.standard_normal(4000)).astype(np.float32)
    stepped = rounded.copy()
    stepped[1000:2000] += 1e-4

    assert list(continuity_failures(continuity(rounded, whole, [1000, 2000]))) == []
    (line,) = continuity_failures(continuity(stepped, whole, [1000, 2000]))
    assert line.startswith("a step at a chunk's boundary is 0.0001")
    # Away from a boundary, the same jump counts as rounding.
    assert continuity(stepped, whole, [500]).boundary_error < 1e-4
