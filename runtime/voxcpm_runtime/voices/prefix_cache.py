"""What the language models made of a voice: kept in memory, and beside the voice's file where it has one."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from voxcpm_runtime.model.driver import Prefix
from voxcpm_runtime.storage.whole_file import whole_file
from voxcpm_runtime.voices.voice import Voice

KEPT_IN_MEMORY = 4
"""Voices; at VoxCPM 1.5's size, ten seconds of prompt and its transcript are some 2 MB."""
_SUFFIX = ".prefix"
_BASE, _RESIDUAL, _PROMPT = "base.", "residual.", "prompt_embeddings"


class Prefixes(Protocol):
    """A function that remembers."""

    def __call__(self, voice: Voice, /) -> Prefix: ...

    def cache_clear(self) -> None:
        """Forget what is in memory."""


def cached_prefixes(make: Callable[[Voice], Prefix], key: str) -> Prefixes:
    """A function from a voice to its prefix that computes each once.

    make: computes one. key: of all that it depends on beside the voice: step models, backend. A file that cannot be
    read is made again, and one that cannot be written is done without.
    """

    @functools.lru_cache(maxsize=KEPT_IN_MEMORY)
    def prefix(voice: Voice) -> Prefix:
        if voice.path is None:
            return make(voice)
        digest = hashlib.sha256(f"{key}|{voice.digest}".encode()).hexdigest()[:16]
        path = voice.path.with_name(f"{voice.path.name}.{digest}{_SUFFIX}")
        known = _read(path)
        if known is None:
            known = make(voice)
            _write(path, known)
        return known

    return prefix


def prefix_files(voice_path: Path) -> Iterable[Path]:
    """The files kept beside a voice's file."""
    return voice_path.parent.glob(f"{voice_path.name}.*{_SUFFIX}")


def _read(path: Path) -> Prefix | None:
    try:
        tensors = load(path.read_bytes())
    except (OSError, SafetensorError):
        return None

    def part(start: str) -> dict[str, np.ndarray]:
        return {name.removeprefix(start): array for name, array in tensors.items() if name.startswith(start)}

    return Prefix(part(_BASE), part(_RESIDUAL), tensors[_PROMPT]) if _PROMPT in tensors else None


def _write(path: Path, prefix: Prefix) -> None:
    tensors = {f"{_BASE}{name}": array for name, array in prefix.base_rows.items()}
    tensors |= {f"{_RESIDUAL}{name}": array for name, array in prefix.residual_rows.items()}
    tensors[_PROMPT] = prefix.prompt_embeddings
    try:
        with whole_file(path) as file:
            file.write(save({name: np.ascontiguousarray(array) for name, array in tensors.items()}))
    except OSError:
        # A folder that is read-only, say: the voice speaks as well, only later.
        return
