"""A folder of voices may have files of others in it: only what this program has written there is ever removed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from voxcpm_runtime.voices.store import VoiceStore
from voxcpm_runtime.voices.voice import Voice

FOREIGN = (
    # What looks unfinished, or like a prefix.
    ".film.mkv.part",
    ".film.0.part",
    ".ada.voice.part",
    ".ada.voice.mine.part",
    ".ada.voice.mine.prefix.0.part",
    "ada.voice.mine.prefix",
    "ada.voice.0123456789ABCDEF.prefix",
    "ada.voice.0123456789abcdef0.prefix",
    "ben.voice.0123456789abcdef.prefix",
    "ada.wav",
    "notes/ada.voice",
    "notes/.ada.voice.0.part",
    "ada.voice.0123456789abcdef.prefix.d/ada.prefix",
)
OWN = (".ada.voice.0.part", ".ada.voice.0123456789abcdef.part", ".ada.voice.0123456789abcdef.prefix.1.part")


@pytest.fixture
def store(tmp_path: Path) -> VoiceStore:
    for name in (*FOREIGN, *OWN):
        path = tmp_path / "voices" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    (tmp_path / "voices" / "ada.voice.1123456789abcdef.prefix").mkdir()
    (tmp_path / "voices" / ".ben.voice.0.part").symlink_to("ada.wav")
    return VoiceStore(tmp_path / "voices")


def found(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}


def test_a_voice_that_comes_and_goes_leaves_the_files_of_others(tts: Any, store: VoiceStore) -> None:
    others = {*FOREIGN, ".ben.voice.0.part"}
    rng = np.random.default_rng(0)
    audio = (rng.standard_normal(61).astype(np.float32) * 0.1, 1000)
    ada: Voice = tts.create_voice(audio, "so it is ", name="ada")

    store.add(ada)
    # What a killed process has left is gone.
    assert found(store.folder) == {*others, "ada.voice"}
    own = store.folder / "ada.voice.0123456789abcdef.prefix"
    own.write_text("saved")
    store.add(ada, overwrite=True)
    assert not own.exists()
    own.write_text("saved")
    store.remove("ada")
    assert found(store.folder) == others
    assert (store.folder / "ada.voice.1123456789abcdef.prefix").is_dir()
