"""Boundaries against upstream's own `_trim_audio_silence_vad` (voxcpm 2.0.3) over librosa 0.11.0, numpy 2.4.6.

The expected samples were recorded once, in an environment of their own: librosa is no dependency here. Upstream's
function was cut out of model/voxcpm2.py, called with the audio of each test, and the slice that it takes printed.
"""

import numpy as np
import pytest

from voxcpm_runtime.audio.reading import trim_silence

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


def test_all_silent_audio_is_returned_whole():
    assert len(trim_silence(silence(5000), RATE)) == 5000
    assert len(trim_silence(silence(0), RATE)) == 0
