"""Edges of segments: no click where one is joined to the next, and nothing changed where it is silent."""

from __future__ import annotations

import numpy as np
import pytest

from voxcpm_runtime.audio.joins import faded_in, faded_out

RATE = 16000
FADE = 80  # 5 ms


def test_a_step_at_the_edges_is_gone() -> None:
    constant = np.full(1000, 0.5, np.float32)

    faded = faded_out(faded_in(constant, RATE), RATE)

    joined = np.concatenate([np.zeros(10, np.float32), faded, np.zeros(10, np.float32)])
    assert np.abs(np.diff(constant, prepend=0, append=0)).max() == 0.5
    # The steepest part of half a cosine of amplitude 0.5 over 80 samples: 0.25 · pi / 80.
    assert np.abs(np.diff(joined)).max() == pytest.approx(0.25 * np.pi / FADE, rel=0.01)
    assert faded.dtype == np.float32
    np.testing.assert_array_equal(faded[FADE:-FADE], constant[FADE:-FADE])


def test_a_silent_edge_is_left_as_it_is() -> None:
    quiet = np.concatenate(
        [np.full(FADE, 0.003), np.full(100, 0.5), np.full(FADE, -0.003)]
    )  # -50.5 dBFS, then -6
    np.testing.assert_array_equal(faded_out(faded_in(quiet, RATE), RATE), quiet)


@pytest.mark.parametrize("samples", [0, 1, 7])
def test_audio_shorter_than_a_fade_is_faded_whole(samples: int) -> None:
    faded = faded_out(np.ones(samples, np.float32), RATE)
    assert len(faded) == samples
    assert not samples or faded[-1] == 0.0
