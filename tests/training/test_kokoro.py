"""Requests to Kokoro are batched by length, and answered in the order in which they were made."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from voxcpm_training.kokoro import Kokoro, Request, _Encoded, _of_like_length

MAX_FRAMES = 8000
"""Frames that are decoded at once, padding included."""


def batches_of(lengths: list[int]) -> list[list[int]]:
    """The lengths in each batch, for items that are numbered from 100."""
    length_of = dict(enumerate(lengths, 100))
    return [[length_of[item] for item in batch] for batch in _of_like_length(list(length_of), lengths)]


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([], []),
        ([7], [[7]]),
        # 5 % of 400 are 20 frames, and 2 more are allowed for short utterances.
        ([400, 410, 422], [[400, 410, 422]]),
        ([400, 410, 423], [[400, 410], [423]]),
        ([20, 23, 24], [[20, 23], [24]]),
        # The first of a batch counts, not the one before: each of these is less than 3 % longer than the last.
        ([400, 411, 422, 433, 444], [[400, 411, 422], [433, 444]]),
        # 8 × 1000 frames are decoded at once, and 7 × 1010 where the longest has 1010: 8 × 1010 are too many.
        ([1000] * 17, [[1000] * 8, [1000] * 8, [1000]]),
        ([1000] * 7 + [1010] * 3, [[1000] * 7, [1010] * 3]),
        # What is too long for any batch is decoded by itself.
        ([9000, 9000], [[9000], [9000]]),
    ],
)
def test_batches_of_like_length(lengths: list[int], expected: list[list[int]]) -> None:
    assert batches_of(lengths) == expected


def test_every_request_is_in_one_batch_of_bounded_spread_and_size() -> None:
    rng = np.random.default_rng(0)
    lengths = np.sort(rng.integers(10, 880, 3000)).tolist()
    items = rng.permutation(3000).tolist()

    batches = list(_of_like_length(items, lengths))

    assert [item for batch in batches for item in batch] == items
    length_of = dict(zip(items, lengths, strict=True))
    for batch in batches:
        frames = [length_of[item] for item in batch]
        assert max(frames) <= min(frames) * 1.05 + 2
        assert max(frames) * len(frames) <= MAX_FRAMES
    assert len(batches) < 300


class StandIn(Kokoro):
    """A Kokoro without weights: an utterance has its style's first value as frames and its second as audio."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.encoded: list[int] = []
        self.decoded: list[list[int]] = []

    def _encode(self, requests):
        self.encoded.append(len(requests))
        return [
            _Encoded(torch.zeros(0), torch.zeros(0), torch.zeros(0), int(request.style[0]))
            for request in requests
        ]

    def _decode(self, encoded, requests):
        assert [e.length for e in encoded] == [int(request.style[0]) for request in requests]
        self.decoded.append([e.length for e in encoded])
        return [(request.style[1:], np.zeros(1, np.float32)) for request in requests]


def test_speech_comes_in_the_order_of_the_requests() -> None:
    """Numbers of phonemes and of frames disagree, so that both sortings are undone."""
    rng = np.random.default_rng(0)
    requests = [
        Request([1] * int(rng.integers(1, 200)), np.array([rng.integers(10, 880), number], np.float32), 1.0)
        for number in range(300)
    ]
    kokoro = StandIn()

    spoken = kokoro.speak(requests)

    assert [audio.tolist() for audio, _ in spoken] == [[number] for number in range(300)]
    assert kokoro.encoded == [128, 128, 44]
    assert sum(map(len, kokoro.decoded)) == 300
    assert all(max(b) <= min(b) * 1.05 + 2 and max(b) * len(b) <= MAX_FRAMES for b in kokoro.decoded)
