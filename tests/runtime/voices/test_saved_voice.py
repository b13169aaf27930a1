"""A saved voice works with every bundle of its generation: other precisions, another target."""

import numpy as np
import pytest

from voxcpm_runtime.voices.prefix_cache import prefix_files
from voxcpm_runtime.voices.store import VoiceStore
from voxcpm_runtime.voxcpm import VoxCPM
from voxcpm_validation.measures import agreement

GIVEN = {"seed": 3, "min_len": 6, "max_len": 6, "retry_badcase": False}


# Heads of random weights follow nothing.
@pytest.mark.filterwarnings("ignore:segment")
@pytest.mark.parametrize(("bundle", "precision"), [("tiny_bundle", "fp32"), ("tiny_bundle_15", "fp16")])
def test_a_voice_speaks_on_every_bundle_of_its_generation(request, tiny_bundle, tmp_path, bundle, precision):
    clip = (np.random.default_rng(0).standard_normal(1600).astype(np.float32) * 0.1, 16000)
    path = tmp_path / "ada.voice"
    with VoxCPM.from_bundle(tiny_bundle, precision="int8") as tts:
        tts.create_voice(clip, "the you and ", name="ada").save(path)
    with VoxCPM.from_bundle(request.getfixturevalue(bundle), precision=precision) as tts:
        first, again = (tts.speak("and the world", voice=path, **GIVEN).latents for _ in "12")
        own = tts.speak("and the world", clip, "the you and ", **GIVEN).latents
        other = tts.speak("and the world", **GIVEN).latents
    with VoxCPM.from_bundle(request.getfixturevalue(bundle), precision=precision) as tts:
        from_file = tts.speak("and the world", voice=path, **GIVEN).latents

    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(first, from_file)
    assert len(list(prefix_files(path))) == 1
    # Another precision has its own saved states.
    with VoxCPM.from_bundle(tiny_bundle, precision="int8") as tts:
        tts.generate("and", voice=path, **GIVEN)
    assert len(list(prefix_files(path))) == 2
    # The voice's latents are from an int8 encoder; they differ from the bundle's own by rounding.
    assert agreement(first, own).correlation > 0.95
    assert not np.array_equal(first, other)


FOREIGN = (
    # These look like a temporary file or a prefix.
    ".ada.voice.mine.part",
    "ada.voice.mine.prefix",
    "ada.voice.0123456789ABCDEF.prefix",
    "ada.voice.0123456789abcdef0.prefix",
    "ben.voice.0123456789abcdef.prefix",
    "notes/ada.voice",
)


def test_adding_and_removing_a_voice_preserves_other_files(tts, tmp_path):
    folder = tmp_path / "voices"
    for name in (*FOREIGN, ".ada.voice.0.part"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("mine")
    store = VoiceStore(folder)
    ada = tts.create_voice((np.linspace(-0.5, 0.5, 61), 1000), "so it is ", name="ada")

    def found():
        return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}

    # It replaces the temporary file of a killed process.
    store.add(ada)
    assert found() == {*FOREIGN, "ada.voice"}
    own = folder / "ada.voice.0123456789abcdef.prefix"
    own.write_text("saved")
    store.add(ada, overwrite=True)
    assert not own.exists()
    own.write_text("saved")
    store.remove("ada")
    assert found() == set(FOREIGN)
