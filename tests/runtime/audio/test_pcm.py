import numpy as np
import pytest

from voxcpm_constants.errors import InputError
from voxcpm_runtime.audio.joins import faded_in, faded_out
from voxcpm_runtime.audio.pcm import levels, pcm16

RATE = 16000


def sine(seconds, amplitude=1.0, rate=RATE):
    return (amplitude * np.sin(2 * np.pi * 440 * np.arange(int(rate * seconds)) / rate)).astype(np.float32)


def test_sixteen_bit_samples_are_rounded_and_clipped():
    # 0.5 * 32767 = 16383.5 goes to the even neighbour.
    samples = pcm16(np.array([0.0, 1.0, -1.0, 1.5, -2.0, 0.5, 1e-5, 2e-5], np.float32))

    assert samples.dtype == np.int16
    assert samples.tolist() == [0, 32767, -32767, 32767, -32767, 16384, 0, 1]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_samples_that_are_no_numbers_are_refused(value):
    with pytest.raises(InputError, match="audio: expected finite samples"):
        pcm16(np.array([0.0, value], np.float32))


def test_levels_of_a_sine():
    found = levels(sine(1, 0.5), RATE)

    assert found.peak == pytest.approx(0.5, abs=1e-4)
    assert found.rms == pytest.approx(0.5 / np.sqrt(2), abs=1e-4)
    # 20 log10 of 0.5, and 3.01 dB less for a sine.
    assert found.peak_dbfs == pytest.approx(-6.02, abs=0.01)
    assert found.rms_dbfs == pytest.approx(-9.03, abs=0.01)
    assert (found.silence_ratio, found.clipped) == (0.0, 0)


def test_frames_below_fifty_decibels_are_silence():
    # One second: 300 ms of zeros, 200 ms at -60 dBFS, 500 ms at -40 dBFS.
    audio = np.concatenate(
        [
            np.zeros(int(0.3 * RATE), np.float32),
            np.full(int(0.2 * RATE), 1e-3),
            np.full(int(0.5 * RATE), 1e-2),
        ]
    )

    assert levels(audio, RATE).silence_ratio == pytest.approx(0.5)
    # Another 10 ms are a frame of their own: 26 of 51.
    assert levels(np.append(audio, np.zeros(RATE // 100)), RATE).silence_ratio == pytest.approx(26 / 51)


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
