"""A fake speaker for sessions, whose audio depends only on the text."""

import time
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from voxcpm_constants.errors import InputError
from voxcpm_runtime.speech.request import CancelToken
from voxcpm_runtime.speech.results import Piece
from voxcpm_runtime.speech.session import AudioChunk, Session
from voxcpm_runtime.text.segments import Segment

RATE = 1000
TEXT = "Mr. Lee spoke. “Come in. Sit down,” he said! 今天天气很好。我们走吧！\n\n*** Then he left... It was 5 p.m."
SPOKEN = [
    "Mr. Lee spoke.",
    "“Come in. Sit down,” he said!",
    "今天天气很好。",
    "我们走吧！",
    "*** Then he left...",
    "It was 5 p.m.",
]
PATCH = 20


class Speaker:
    """Speaks one patch per two characters of a segment; samples encode the segment and the position."""

    def __init__(self, pause: Callable[[], float] = lambda: 0.0, patch: int = PATCH) -> None:
        self.segments: list[Segment] = []
        self.pieces = 0
        self.pause = pause
        self.patch = patch

    def __call__(self, segments: Iterable[Segment | None], /, *, cancel: CancelToken) -> Iterator[Piece]:
        paused = False
        for segment in segments:
            index = len(self.segments)
            if segment is None:
                yield Piece(np.zeros(0, np.float32), index)
                continue
            self.segments.append(segment)
            if "unspeakable" in segment.text:
                raise InputError("this voice cannot say 'unspeakable'")
            if paused:
                yield Piece(np.zeros(7, np.float32), index, 0)
            paused = segment.ends_paragraph
            for patch in range(len(segment.text) // 2):
                time.sleep(self.pause())
                cancel.check()
                self.pieces += 1
                samples = np.full(self.patch, np.sin(index * 100 + patch), np.float32)
                yield Piece(samples, index, patch + 1)


def spoken(session: Session, *fragments: str) -> list[AudioChunk]:
    """All chunks of these fragments of text."""
    for fragment in fragments:
        session.push_text(fragment)
    session.flush()
    return list(session)


def heard(text: str = TEXT, **options: object) -> list[tuple]:
    with Session(Speaker(), RATE, **options) as session:
        return [as_tuple(chunk) for chunk in spoken(session, text)]


def as_tuple(chunk: AudioChunk) -> tuple:
    return chunk.pcm.tobytes(), chunk.offset, chunk.sentence, chunk.state_id
