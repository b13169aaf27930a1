"""Streamed speech in chunks of several patches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from voxcpm_constants.errors import InputError
from voxcpm_runtime.audio.files import Audio
from voxcpm_runtime.speech.narrator import Piece

DEFAULT_CHUNK_PATCHES = 5


def check_chunking(chunk_patches: object, first_chunk_patches: object) -> None:
    """Raises InputError for numbers that are not whole or below 1; the first chunk's may be None."""
    for name, value in (("chunk_patches", chunk_patches), ("first_chunk_patches", first_chunk_patches)):
        if value is None and name == "first_chunk_patches":
            continue
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
            raise InputError(f"{name} must be a whole number of patches from 1, got {value!r}")


def chunked(pieces: Iterable[Piece], chunk_patches: int, first_chunk_patches: int | None) -> Iterator[Audio]:
    """The pieces' audio in chunks (samples,) of so many patches; the last one, and one with a pause, as it comes."""
    wanted = chunk_patches if first_chunk_patches is None else first_chunk_patches
    gathered: list[Audio] = []
    patches = 0
    for piece in pieces:
        gathered.append(piece.audio)
        patches += piece.patches > 0
        if patches == wanted:
            yield np.concatenate(gathered)
            gathered, patches, wanted = [], 0, chunk_patches
    if gathered:
        yield np.concatenate(gathered)
