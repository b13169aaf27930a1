"""What is wrong with a recording of a voice before anything is spoken: too quiet, or with another transcript."""

from __future__ import annotations

import unicodedata

import numpy as np

from voxcpm_runtime.audio.pcm import Audio
from voxcpm_runtime.audio.reading import trim_silence

# Levels in decibels below full scale: root mean square of the whole recording.
_USUAL_DB, _QUIET_DB, _TOO_QUIET_DB = -22.0, -40.0, -54.0
_MAX_RAISED_PEAK = 0.95
# Seconds of a character at a usual pace: a digit is a word, a Chinese or Korean character is a syllable.
_SECONDS_PER_LETTER, _SECONDS_PER_SYLLABLE, _SECONDS_PER_DIGIT = 0.07, 0.2, 0.3
_MAX_PACE_RATIO = 3.0  # Real speech, with its pauses, has 0.5 to 2
_MIN_SECONDS = 0.6  # One or two words do not tell the pace


def raised(audio: Audio, what: str) -> tuple[Audio, list[str]]:
    """A quiet recording (samples,) at a usual level, others unchanged; and a fault if its noise is then loud.

    what: its name in the fault. Ignores DC offset.
    """
    sound = audio - audio.mean()
    rms, peak = float(np.sqrt(np.mean(np.square(sound)))), float(np.abs(sound).max())
    level = 20 * np.log10(max(rms, 1e-9))
    if level >= _QUIET_DB:
        return audio, []
    fault = f"{what}: very quiet, {level:.0f} dBFS; it is made louder, and so is its noise: "
    faults = [f"{fault}record it again, closer"] if level < _TOO_QUIET_DB else []
    return sound * np.float32(min(10 ** ((_USUAL_DB - level) / 20), _MAX_RAISED_PEAK / peak)), faults


def pace_faults(audio: Audio, rate: int, transcript: str) -> list[str]:
    """A fault if nobody could say the transcript in the time of the recording (samples,) at `rate` Hz."""
    seconds = max(len(trim_silence(audio, rate)) / rate, _MIN_SECONDS)
    expected = max(sum(map(_seconds, transcript)), _MIN_SECONDS)
    if max(seconds / expected, expected / seconds) <= _MAX_PACE_RATIO:
        return []
    fault = f"the prompt has {seconds:.1f} s of sound, but its transcript takes about {expected:.1f} s to say"
    return [f"{fault}; give the words of this recording, all of them and no others"]


def _seconds(char: str) -> float:
    if not char.isalnum():
        return 0.0
    if char.isdecimal():
        return _SECONDS_PER_DIGIT
    return _SECONDS_PER_SYLLABLE if unicodedata.east_asian_width(char) in "WF" else _SECONDS_PER_LETTER
