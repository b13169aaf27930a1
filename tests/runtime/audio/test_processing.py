"""Silence is trimmed as upstream does, and speech stretched in time without a change of pitch.

Boundaries are compared with upstream's own `_trim_audio_silence_vad` (voxcpm 2.0.3) over librosa 0.11.0, numpy 2.4.6.

The expected samples were recorded once, in an environment of their own: librosa is no dependency here. Upstream's
function was cut out of model/voxcpm2.py, called with the audio of each test, and the slice that it takes printed.
"""

import numpy as np
import pytest

from voxcpm_runtime.audio.reading import trim_silence
from voxcpm_runtime.audio.stretching import Stretching

RATE = 16000


def sound(samples, level=0.5):
    """A square wave, whose level is its peak and is exact in float32."""
    return (level * np.where(np.arange(samples) // 20 % 2, -1, 1)).astype(np.float32)


def silence(samples):
    return np.zeros(samples, np.float32)


def click(samples, at):
    audio = silence(samples)
    audio[at] = 1
    return audio


# Parts -> upstream's boundaries at 1000 Hz, where 200 ms are less than a hop, and at 16000 Hz.
SHAPES = {
    "silence on both sides": ([silence(10000), sound(8000), silence(20000)], (9016, 19656), (6016, 22656)),
    "noise of -34.9 dB": ([sound(20000, 0.009), sound(8000), sound(20000, 0.009)], (824, 47304), (0, 48000)),
    "noise of -35.1 dB": (
        [sound(20000, 0.0088), sound(8000), sound(20000, 0.0088)],
        (19256, 29384),
        (16256, 32384),
    ),
    "a pause": (
        [silence(9000), sound(4000), silence(9000), sound(4000, 0.02), silence(9000)],
        (7992, 26824),
        (4992, 29824),
    ),
    # The rest is silence relative to the highest peak, but not relative to the loudest frame.
    "a click before a murmur": ([click(9000, 10), sound(8000, 0.01), silence(9000)], (0, 2248), (0, 5248)),
    "a click amid a murmur": (
        [silence(5000), sound(3000, 0.01), click(9000, 10), sound(6000, 0.01)],
        (3896, 9928),
        (896, 12928),
    ),
    # librosa's floor of 1e-5 is less than 35 dB below.
    "a whisper of 1e-4": ([silence(10000), sound(8000, 1e-4), silence(10000)], (0, 20168), (0, 23168)),
    "exactly a frame": ([silence(2000), sound(48)], (824, 2048), (0, 2048)),
}


def taken(audio, rate):
    """Start and end of the remaining samples."""
    part = trim_silence(audio, rate)
    start = (part.__array_interface__["data"][0] - audio.__array_interface__["data"][0]) // audio.itemsize
    np.testing.assert_array_equal(part, audio[start : start + len(part)])
    return start, start + len(part)


@pytest.mark.parametrize("shape", SHAPES)
def test_trimmed_range_equals_upstreams(shape):
    parts, at_1000, at_16000 = SHAPES[shape]
    audio = np.concatenate(parts)
    assert (taken(audio, 1000), taken(audio, 16000)) == (at_1000, at_16000)


def test_silence_is_kept():
    assert len(trim_silence(silence(5000), RATE)) == 5000
    assert len(trim_silence(silence(0), RATE)) == 0
    assert not stretched(np.zeros(5000, np.float32), 1.7, 640).any()


STRETCH_RATE = 24_000


def stretched(audio, speed, piece):
    stretch = Stretching(speed, STRETCH_RATE)
    starts = range(0, len(audio), piece)
    return np.concatenate([stretch(audio[at : at + piece], last=at == starts[-1]) for at in starts])


@pytest.mark.parametrize("speed", [0.25, 0.8, 1.3, 2.0, 4.0])
def test_stretching_keeps_pitch_and_sets_length(speed):
    tone = (0.5 * np.sin(2 * np.pi * 200 * np.arange(72_001) / STRETCH_RATE)).astype(np.float32)
    audio = stretched(tone, speed, 3840)
    assert len(audio) == round(len(tone) / speed)
    power = np.abs(np.fft.rfft(audio * np.hanning(len(audio)))) ** 2
    loudest = power.argmax()
    assert loudest * STRETCH_RATE / len(audio) == pytest.approx(200, abs=1)
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
