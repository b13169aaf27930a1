"""Time stretching: length, pitch and edges, independent of chunking."""

import numpy as np
import pytest

from voxcpm_runtime.audio.stretching import Stretching

RATE = 24_000


def stretched(audio, speed, piece):
    stretch = Stretching(speed, RATE)
    starts = range(0, len(audio), piece)
    return np.concatenate([stretch(audio[at : at + piece], last=at == starts[-1]) for at in starts])


@pytest.mark.parametrize("speed", [0.25, 0.8, 1.3, 2.0, 4.0])
def test_stretching_keeps_pitch_and_sets_length(speed):
    tone = (0.5 * np.sin(2 * np.pi * 200 * np.arange(72_001) / RATE)).astype(np.float32)
    audio = stretched(tone, speed, 3840)
    assert len(audio) == round(len(tone) / speed)
    power = np.abs(np.fft.rfft(audio * np.hanning(len(audio)))) ** 2
    loudest = power.argmax()
    assert loudest * RATE / len(audio) == pytest.approx(200, abs=1)
    # Everything else is 60 dB below the tone: no clicks, no beats.
    assert power.sum() - power[max(0, loudest - 20) : loudest + 21].sum() < 1e-6 * power.sum()
    for piece in (97, 1000, 100_000):
        np.testing.assert_array_equal(audio, stretched(tone, speed, piece))


def test_windows_are_faded_into_each_other():
    """Noise of a voice's band has no window that fits exactly, so a jump would be heard as a click."""
    noise = np.random.default_rng(0).standard_normal(24_000)
    smooth = np.convolve(noise, np.hanning(60) / 60, "same").astype(np.float32)
    jumps = np.abs(np.diff(stretched(smooth, 1.3, 3840)))
    assert jumps.max() < 1.2 * np.abs(np.diff(smooth)).max()


@pytest.mark.parametrize("samples", [1, 300, 1000])
def test_the_shortest_pieces(samples):
    noise = np.random.default_rng(0).standard_normal(samples).astype(np.float32)
    assert len(stretched(noise, 0.5, 10_000)) == 2 * samples
    assert stretched(noise, 1.0, 10_000).tobytes() == noise.tobytes()


def test_silence_stays_silence():
    assert not stretched(np.zeros(5000, np.float32), 1.7, 640).any()
