"""A saved voice works with every bundle of its generation: other precisions, another target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from voxcpm_runtime.voices.prefix_cache import prefix_files
from voxcpm_runtime.voices.store import VoiceStore
from voxcpm_runtime.voices.voice import Voice
from voxcpm_runtime.voxcpm import VoxCPM
from voxcpm_validation.measures import agreement

GIVEN = {"seed": 3, "min_len": 6, "max_len": 6, "retry_badcase": False}
BUNDLES = [
    ("tiny_bundle", "fp32"),
    ("tiny_bundle_15", "fp16"),
]


@pytest.fixture(scope="module")
def clip() -> tuple[np.ndarray, int]:
    return np.random.default_rng(0).standard_normal(1600).astype(np.float32) * 0.1, 16000


@pytest.fixture
def path(tiny_bundle: Path, tmp_path: Path, clip: tuple[np.ndarray, int]) -> Path:
    """The file of a voice made with the int8 bundle."""
    with VoxCPM.from_bundle(tiny_bundle, precision="int8") as tts:
        tts.create_voice(clip, "the you and ", name="ada").save(tmp_path / "ada.voice")
    return tmp_path / "ada.voice"


@pytest.mark.parametrize(("bundle", "precision"), BUNDLES)
def test_a_voice_speaks_on_every_bundle_of_its_generation(
    request: pytest.FixtureRequest, path: Path, clip: tuple[np.ndarray, int], bundle: str, precision: str
) -> None:
    with VoxCPM.from_bundle(request.getfixturevalue(bundle), precision=precision) as tts:
        first, again = (tts.speak("and the world", voice=path, **GIVEN).latents for _ in "12")
        own = tts.speak("and the world", clip, "the you and ", **GIVEN).latents
        other = tts.speak("and the world", **GIVEN).latents
    with VoxCPM.from_bundle(request.getfixturevalue(bundle), precision=precision) as tts:
        from_file = tts.speak("and the world", voice=path, **GIVEN).latents

    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(first, from_file)
    assert len(list(prefix_files(path))) == 1
    # The voice's latents are from an int8 encoder; they differ from the bundle's own by rounding.
    assert agreement(first, own).correlation > 0.95
    assert not np.array_equal(first, other)


def test_saved_states_beside_a_voice_belong_to_one_bundle_each(tiny_bundle: Path, path: Path) -> None:
    for precision in ("int8", "fp16", "int8"):
        with VoxCPM.from_bundle(tiny_bundle, precision=precision) as tts:
            tts.generate("and", voice=path, **GIVEN)

    assert len(list(prefix_files(path))) == 2


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
