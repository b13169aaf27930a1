"""The sequence to prefill: text tokens, and audio patches of a reference or a prompt.

zero-shot       text 101
continuation    text 101 prompt                  (text: the prompt's transcript and the target, tokenised as one)
reference       103 reference 104 text 101       (VoxCPM2)
both            103 reference 104 text 101 prompt

A voice's own positions, its *lead*, come first: the reference and its markers, then the prompt's transcript. Step
models accept only a few lengths, so a sequence is run in chunks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from voxcpm_constants.tokenizer_file import AUDIO_START, REFERENCE_END, REFERENCE_START

# A call reads all weights, which takes about as long as the arithmetic for this many items.
_CALL_COST = 8

Latents = npt.NDArray[np.float32]
"""Latent patches (patches, frames, latent_dim), or one patch (frames, latent_dim)."""


@dataclass(frozen=True)
class Sequence:
    """What both language models are prefilled with."""

    tokens: npt.NDArray[np.int32]  # Token ids (positions,); 0 at audio positions
    is_audio: npt.NDArray[np.bool_]  # Whether each position is audio (positions,)
    patches: Latents  # The patches of the audio positions, in order: (audio positions, frames, latent_dim)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def continues_audio(self) -> bool:
        """Whether the last position is audio, of a prompt to continue."""
        return bool(self.is_audio[-1])

    @property
    def last_patch(self) -> Latents:
        """The first DiT's `cond` (frames, latent_dim): the prompt's last patch, or zeros after text."""
        return self.patches[-1] if self.continues_audio else np.zeros(self.patches.shape[1:], np.float32)

    def after(self, position: int) -> Sequence:
        """The part of the sequence from `position` on."""
        earlier_patches = int(self.is_audio[:position].sum())
        return Sequence(self.tokens[position:], self.is_audio[position:], self.patches[earlier_patches:])

    def decoder_context(self, count: int) -> Latents:
        """The last `count` patches of the prompt, to decode before the generated ones; empty after text."""
        return self.patches[-count:] if self.continues_audio and count else self.patches[:0]


def build_sequence(
    text_tokens: list[int], patch_shape: tuple[int, int], *, prompt: Latents | None = None,
    reference: Latents | None = None, starts_audio: bool = True,
) -> Sequence:  # fmt: skip
    """The sequence of one generation.

    patch_shape: (frames, latent_dim). prompt, reference: latent patches (patches, frames, latent_dim). starts_audio:
    False for the lead of a voice, which may be empty.
    """
    text = [*text_tokens, AUDIO_START] if starts_audio else text_tokens
    parts: list[list[int] | Latents] = [text]
    if reference is not None:
        parts = [[REFERENCE_START], reference, [REFERENCE_END], text]
    if prompt is not None:
        parts.append(prompt)
    tokens: list[int] = []
    is_audio: list[bool] = []
    patches = [np.zeros((0, *patch_shape), np.float32)]
    for part in parts:
        if isinstance(part, list):
            tokens += part
        else:
            tokens += [0] * len(part)
            patches.append(part)
        is_audio += [not isinstance(part, list)] * len(part)
    return Sequence(
        np.array(tokens, np.int32), np.array(is_audio, np.bool_), np.concatenate(patches, dtype=np.float32)
    )


class Chunk(NamedTuple):
    """`length` items from index `start` on, padded to `size`."""

    start: int
    length: int
    size: int


def plan_chunks(
    count: int, sizes: Iterable[int], *, position: int = 0, capacity: int | None = None
) -> tuple[Chunk, ...]:
    """The cheapest way to run `count` items in chunks of `sizes`; only the last chunk may be padded.

    position: of the first item in the KV cache. capacity: positions in the cache. Padding is written there, too, so it
    must fit; it is overwritten before anything attends to it. Raises ValueError if the items do not fit.
    """
    end = position + count
    best: list[tuple[int, int]] = [(0, 0)]  # (cost, size of the first chunk) for the last `index` items
    for left in range(1, count + 1):
        choices = [
            (_CALL_COST + size + best[max(0, left - size)][0], -size)
            for size in sizes
            if size <= left or capacity is None or end - left + size <= capacity
        ]
        if not choices:
            raise ValueError(
                f"{count} items at position {position} do not fit {capacity} positions in chunks of {sizes}"
            )
        cost, negative = min(choices)
        best.append((cost, -negative))
    chunks = []
    start = 0
    while start < count:
        size = best[count - start][1]
        chunks.append(Chunk(start, min(size, count - start), size))
        start += size
    return tuple(chunks)
