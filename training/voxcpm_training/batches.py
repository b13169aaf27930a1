"""Batches of single utterances and of pairs by one speaker, in a few fixed shapes.

The sequence of a single utterance is [text tokens, audio start, patches]; that of a pair is [both texts, audio start,
patches of both], as in inference with a prompt. With fixed shapes, a training step can be captured once per shape.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from voxcpm_training.architecture import PATCH
from voxcpm_training.speech import Utterances
from voxcpm_training.text import AUDIO_START

LENGTHS = (40, 64, 88, 112, 136, 168, 208, 256, 312, 376, 448, 528, 624, 736)
"""Possible sequence lengths of a batch, in positions; longer sequences are dropped."""
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Shape:
    """The shape of a batch: positions per sequence, sequences, and maximum total of audio positions."""

    length: int
    rows: int
    patches: int

    @classmethod
    def of(cls, length: int, tokens: int) -> Shape:
        """The shape for sequences of `length` positions, about `tokens` positions in total."""
        rows = max(1, tokens // length)
        return cls(length, rows, int(0.40 * rows * length))


@dataclass(frozen=True)
class Batch:
    """One batch as indices. tokens: token ids (rows, length); the others (patches,), an entry per audio position.

    places: index of the audio position among all rows·length positions; rows·length for padding.
    patches, before: index of its patch and of the previous one; the total number of patches if there is none.
    last: 1 if the utterance ends with this patch, else 0.
    """

    shape: Shape
    tokens: Ints
    places: Ints
    patches: Ints
    before: Ints
    last: Ints


class Sampler:
    """Samples batches. tokens: positions per batch. paired: fraction of utterances that are paired.

    Process `rank` of `world` gets every `world`-th batch; at each step, all processes get batches of the same shape.
    """

    def __init__(
        self, utterances: Utterances, tokens: int, paired: float, seed: int, rank: int = 0, world: int = 1
    ) -> None:
        self._u, self._paired = utterances, paired
        self._rank, self._world = rank, world
        # All processes draw the same plan, but the rest of a batch independently.
        self._rng, self._own_rng = np.random.default_rng(seed), np.random.default_rng((seed, rank))
        self.shapes = tuple(Shape.of(length, tokens) for length in LENGTHS)
        self.patches = utterances.frames // PATCH
        self._text_at = np.concatenate(([0], np.cumsum(utterances.characters)))
        self._patch_at = np.concatenate(([0], np.cumsum(self.patches)))
        self.total_patches = int(self._patch_at[-1])

    def epoch(self) -> Iterator[Batch]:
        """The batches of one pass over the utterances, in random order."""
        first, second = self._items()
        # The second text starts with a word mark, which is the space between the two.
        lengths = _total(self._u.characters, first, second) + 1
        patches = _total(self.patches, first, second)
        shape_of = np.searchsorted(np.array(LENGTHS), lengths + patches)
        plan: list[tuple[Shape, Ints]] = []
        for index, shape in enumerate(self.shapes):
            members = self._rng.permutation(np.nonzero(shape_of == index)[0])
            chunks: list[Ints] = []
            start = 0
            while start < len(members):
                fitting = np.cumsum(patches[members[start : start + shape.rows]]) <= shape.patches
                count = max(1, int(fitting.sum()))
                chosen = members[start : start + count]
                start += count
                # A small remainder would be mostly padding; its utterances wait for another epoch.
                if len(chosen) * 2 > shape.rows or count == 1 == shape.rows:
                    chunks.append(chosen)
            whole = len(chunks) // self._world * self._world
            plan += [(shape, chunk) for chunk in chunks[self._rank : whole : self._world]]
        for at in self._rng.permutation(len(plan)):
            shape, chosen = plan[int(at)]
            yield self._batch(shape, first[chosen], second[chosen])

    def _items(self) -> tuple[Ints, Ints]:
        """Utterance indices (first, second) of singles and pairs; second is -1 for a single."""
        order = self._rng.permutation(len(self._u.frames))
        cut = int(len(order) * self._paired)
        pairable, singles = order[:cut], order[cut:]
        pairable = pairable[np.argsort(self._u.speaker[pairable], kind="stable")]
        pairable = pairable[: len(pairable) // 2 * 2]
        a, b = pairable[0::2], pairable[1::2]
        same = self._u.speaker[a] == self._u.speaker[b]
        first = np.concatenate((singles, a[same]))
        return first, np.concatenate((np.full(len(singles), -1), b[same]))

    def _batch(self, shape: Shape, first: Ints, second: Ints) -> Batch:
        tokens = np.zeros((shape.rows, shape.length), np.int64)
        audio: list[tuple[Ints, Ints]] = []
        before, last = [], []
        # At inference, some prompt transcripts have no trailing space, so some pairs have none either.
        joined = self._own_rng.random(len(first)) < 0.25
        for row, (a, b) in enumerate(zip(first.tolist(), second.tolist(), strict=True)):
            text = self._text(a)
            if b >= 0:
                text = np.concatenate((text, self._text(b)[int(joined[row]) :]))
            start = len(text) + 1
            tokens[row, : len(text)] = text
            tokens[row, len(text)] = AUDIO_START
            numbers = np.concatenate(
                [np.arange(self._patch_at[i], self._patch_at[i + 1]) for i in (a, b) if i >= 0]
            )
            places = row * shape.length + start + np.arange(len(numbers))
            audio.append((places, numbers))
            before.append(np.concatenate(([self.total_patches], numbers[:-1])))
            last.append(np.arange(len(numbers)) == len(numbers) - 1)
        pad = shape.patches - sum(len(places) for places, _ in audio)
        padding_place, padding_patch = shape.rows * shape.length, self.total_patches
        return Batch(
            shape=shape, tokens=tokens,
            places=np.concatenate([*(places for places, _ in audio), np.full(pad, padding_place)]),
            patches=np.concatenate([*(numbers for _, numbers in audio), np.full(pad, padding_patch)]),
            before=np.concatenate([*before, np.full(pad, padding_patch)]),
            last=np.concatenate([*last, np.zeros(pad, bool)]).astype(np.int64),
        )  # fmt: skip

    def _text(self, utterance: int) -> npt.NDArray[np.uint8]:
        return self._u.text[self._text_at[utterance] : self._text_at[utterance + 1]]


def _total(sizes: Ints, first: Ints, second: Ints) -> Ints:
    """The sizes of singles and pairs; second is -1 for a single."""
    return sizes[first] + np.where(second < 0, 0, sizes[second])
