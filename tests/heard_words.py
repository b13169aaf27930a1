"""Speech recognition of a server's audio."""

from functools import cache

import numpy as np

from voxcpm_validation.listening.recognition import Recogniser, word_errors

SAID = "the river runs slowly to the sea. she sells fresh bread in the market. "
"""A text that the default voice speaks clearly with `SEED`."""
SEED = 9


def wrong_words(pcm: bytes, sample_rate: int) -> int:
    """Errors of Whisper tiny.en in `SAID`, from 16-bit samples."""
    audio = np.frombuffer(pcm, "<i2").astype(np.float32) / 32767
    return word_errors([SAID], [_recogniser().transcribe(audio, sample_rate)]).errors


@cache
def _recogniser() -> Recogniser:
    return Recogniser()
