"""Readers of tensors that were saved: a voice, its prefix, the segments of an interrupted run."""

from __future__ import annotations

import functools
import json
import random
from pathlib import Path
from typing import Any

import numpy as np

from robustness.damage import resealed
from robustness.mutations import mutated_bytes
from robustness.reader import Reader
from robustness.readers.bundles import changed_json


def _changed_tensors(content: bytes, chance: random.Random) -> bytes:
    """Other tensors with a digest of them, or other bytes, mostly of the header."""
    if chance.random() < 0.5:
        return resealed(content, chance)
    length = 8 + int.from_bytes(content[:8], "little")
    if chance.random() < 0.8:
        return mutated_bytes(content[:length], chance) + content[length:]
    return mutated_bytes(content, chance)


def _structured(content: bytes) -> Any:
    from robustness.formats import changed_tensors

    return changed_tensors(content)


def _prompt(bundle: Path) -> np.ndarray:
    from voxcpm_constants.manifest import Manifest

    a = Manifest.read(bundle).architecture
    return np.ones((3, a.patch_size, a.feat_dim), np.float32)


def voice(bundle: Path, folder: Path) -> Reader:
    from voxcpm_constants.manifest import Manifest
    from voxcpm_runtime import Voice
    from voxcpm_runtime.voices.voice import Turn, VoiceHeader, latent_space

    a = Manifest.read(bundle).architecture
    header = VoiceHeader(
        name="ada", generation=a.generation, latent_space=latent_space(a), sample_rate=a.input_sample_rate,
        turns=(Turn(text="so", patches=3),),
    )  # fmt: skip
    path = folder / "a.voice"
    Voice(header, _prompt(bundle)).save(path)

    def read(content: bytes) -> None:
        (folder / "b.voice").write_bytes(content)
        Voice.load(folder / "b.voice").check(a)

    content = path.read_bytes()
    return Reader((content,), read, _changed_tensors, functools.partial(_structured, content))


def prefix(bundle: Path, folder: Path) -> Reader:
    from voxcpm_runtime.storage.sealed_tensors import sealed
    from voxcpm_runtime.voices.prefix_cache import _read

    rows = {
        f"{part}.{kind}": np.ones((2, 1, 5, 4), np.float16)
        for part in ("base", "residual")
        for kind in ("k", "v")
    }
    content = sealed({**rows, "prompt_embeddings": _prompt(bundle)[:, 0]})

    def read(content: bytes) -> str | None:
        (folder / "b.prefix").write_bytes(content)
        return "computed again" if _read(folder / "b.prefix") is None else None

    return Reader((content,), read, _changed_tensors, functools.partial(_structured, content))


_PLAN = json.dumps({"digest": "d", "seed": 1}).encode()


def segment(bundle: Path, folder: Path) -> Reader:
    """A saved segment, with the plan that it belongs to."""
    content = _segment(bundle, folder)
    read = _resumed(folder)
    structured = functools.partial(_structured, content)
    return Reader((content,), lambda changed: read(_PLAN, changed), _changed_tensors, structured)


def saved_plan(bundle: Path, folder: Path) -> Reader:
    """The plan of saved segments, with a segment."""
    content = _segment(bundle, folder)
    read = _resumed(folder)
    return Reader((_PLAN,), lambda changed: read(changed, content), changed_json)


def _segment(bundle: Path, folder: Path) -> bytes:
    from voxcpm_runtime.speech.results import SpokenSegment
    from voxcpm_runtime.speech.saved_segments import SavedSegments

    prompt = _prompt(bundle)
    fields: dict[str, Any] = {
        field: 1 for field in SpokenSegment.__dataclass_fields__ if field not in ("audio", "latents")
    }
    saved = SavedSegments(folder / "first.wav", "d", 1, drawn=False)
    saved.put(0, SpokenSegment(**fields, audio=prompt[0, 0], latents=prompt))
    (path,) = saved.folder.glob("*.segment")
    content = path.read_bytes()
    saved.discard()
    return content


def _resumed(folder: Path):
    from voxcpm_runtime.speech.saved_segments import SavedSegments
    from voxcpm_runtime.storage.whole_file import hidden_beside

    output = folder / "book.wav"
    saved = hidden_beside(output, "segments")

    def read(plan: bytes, content: bytes) -> str | None:
        saved.mkdir(exist_ok=True)
        (saved / "plan.json").write_bytes(plan)
        (saved / "00000.segment").write_bytes(content)
        found = SavedSegments(output, "d", 1, drawn=len(content) % 2 == 0)
        try:
            return "spoken again" if found.get(0) is None else None
        finally:
            found.release()

    return read
