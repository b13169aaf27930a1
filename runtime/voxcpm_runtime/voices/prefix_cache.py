"""A cache of prefixes, the language models' states after a voice: in memory, and next to the voice's file."""

from __future__ import annotations

import contextlib
import functools
import glob
import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from voxcpm_constants.bounds import MAX_VOICE_BYTES
from voxcpm_constants.json_files import read_bounded
from voxcpm_constants.tensor_files import dump_tensors, load_tensors
from voxcpm_runtime.bundle.opening import Bundle
from voxcpm_runtime.model.driver import Driver, Prefix
from voxcpm_runtime.model.sequence import build_sequence
from voxcpm_runtime.storage.atomic_file import atomic_file
from voxcpm_runtime.text.normalization import spelled_transcript
from voxcpm_runtime.voices.voice import Voice

_MAX_IN_MEMORY = 4
"""Number of voices; ten seconds of prompt with transcript take about 2 MB for VoxCPM 1.5."""
_SUFFIX = ".prefix"
_BASE, _RESIDUAL, _PROMPT = "base.", "residual.", "prompt_embeddings"


def cached_prefixes(make: Callable[[Voice], Prefix], key: str) -> functools._lru_cache_wrapper[Prefix]:
    """A cached function from a voice to its prefix.

    make: computes a prefix. key: identifies the step models and the backend. A damaged file is replaced; if it cannot
    be written, as in a read-only folder, the prefix is cached in memory only.
    """

    @functools.lru_cache(maxsize=_MAX_IN_MEMORY)
    def prefix(voice: Voice) -> Prefix:
        if voice.path is None:
            return make(voice)
        digest = hashlib.sha256(f"{key}|{voice.digest}".encode()).hexdigest()[:16]
        path = voice.path.with_name(f"{voice.path.name}.{digest}{_SUFFIX}")
        if (known := _read(path)) is None:
            known = make(voice)
            _write(path, known)
        return known

    return prefix


def computed_prefix(bundle: Bundle, driver: Driver, voice: Voice) -> Prefix:
    """The prefix of a voice: the positions before the text to speak, run through the language models."""
    a = bundle.architecture
    shape = (a.patch_size, a.feat_dim)
    transcript = spelled_transcript(voice.transcript, bundle.tokenizer)
    tokens = bundle.tokenizer(transcript) if transcript else []
    lead = build_sequence(tokens, shape, reference=voice.reference, starts_audio=False)
    return driver.prefix(lead, np.zeros((0, *shape), np.float32) if voice.prompt is None else voice.prompt)


def prefix_files(voice_path: Path) -> list[Path]:
    """The prefix files next to a voice's file."""
    return list(voice_path.parent.glob(f"{glob.escape(voice_path.name)}.{'[0-9a-f]' * 16}{_SUFFIX}"))


def _read(path: Path) -> Prefix | None:
    """The prefix in a file; None if it is missing or damaged."""
    try:
        tensors, _ = load_tensors(read_bounded(path, MAX_VOICE_BYTES))
    except (OSError, ValueError):
        return None
    if _PROMPT not in tensors:
        return None

    def part(start: str) -> dict[str, np.ndarray]:
        return {name.removeprefix(start): array for name, array in tensors.items() if name.startswith(start)}

    return Prefix(part(_BASE), part(_RESIDUAL), tensors[_PROMPT])


def _write(path: Path, prefix: Prefix) -> None:
    tensors = {f"{_BASE}{name}": array for name, array in prefix.base_rows.items()}
    tensors |= {f"{_RESIDUAL}{name}": array for name, array in prefix.residual_rows.items()}
    tensors[_PROMPT] = prefix.prompt_embeddings
    with contextlib.suppress(OSError), atomic_file(path) as file:
        file.write(dump_tensors(tensors))
