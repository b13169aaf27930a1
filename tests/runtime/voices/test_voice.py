"""Saved voices equal the recordings that they are made from, in memory and from files."""

import contextlib
import json

import numpy as np
import pytest
from safetensors.numpy import save, save_file

from voxcpm_constants.errors import InputError
from voxcpm_constants.tensor_files import dump_tensors, load_tensors
from voxcpm_runtime.voices.prefix_cache import prefix_files
from voxcpm_runtime.voices.voice import Voice
from voxcpm_runtime.voxcpm import VoxCPM

TEXT = "hello there."
GIVEN = {"seed": 3, "min_len": 6, "max_len": 8, "retry_badcase": False}
RECORDINGS = {
    "prompt": ({"audio": 0, "transcript": "so it is "}, {"prompt_wav_path": 0, "prompt_text": "so it is "}),
    "reference": ({"audio": 0}, {"reference_wav_path": 0}),
    "both": (
        {"audio": 0, "transcript": "so ", "reference": 1},
        {"prompt_wav_path": 0, "prompt_text": "so ", "reference_wav_path": 1},
    ),
}


@pytest.fixture
def audio():
    rng = np.random.default_rng(0)
    return [(rng.standard_normal(samples).astype(np.float32) * 0.1, 1000) for samples in (45, 61)]


@pytest.fixture
def recordings(audio, architecture):
    def of(kind):
        if kind != "prompt" and architecture.generation == "voxcpm":
            pytest.skip("a reference voice needs VoxCPM2")
        return [
            {name: audio[value] if value in (0, 1) else value for name, value in given.items()}
            for given in RECORDINGS[kind]
        ]

    return of


@pytest.mark.parametrize("kind", RECORDINGS)
def test_voice_equals_its_recordings(tts, recordings, tmp_path, kind):
    made_of, given = recordings(kind)
    expected = tts.generate(TEXT, **given, **GIVEN)
    voice = tts.create_voice(**made_of, name="ada")
    assert voice.header.sample_rate == tts.bundle.architecture.input_sample_rate
    path = tmp_path / "ada.voice"
    voice.save(path)
    for source in (voice, Voice.load(path), path, str(path)):
        np.testing.assert_array_equal(tts.generate(TEXT, voice=source, **GIVEN), expected)
    streamed = np.concatenate(list(tts.generate_streaming(TEXT, voice=voice, **GIVEN)))
    np.testing.assert_array_equal(streamed, expected)


@pytest.mark.parametrize("kind", RECORDINGS)
def test_cached_prefix_is_not_recomputed(tts, recordings, tmp_path, models, kind):
    made_of, _ = recordings(kind)
    path = tmp_path / "ada.voice"
    tts.create_voice(**made_of, name="ada").save(path)
    first = tts.generate(TEXT, voice=path, **GIVEN)
    assert len(list(prefix_files(path))) == 1

    def count():
        return sum(len(models[name].calls) for name in ("audio_vae_encoder", "feat_encoder", "base_lm_step"))

    def again(speaking):
        before = count()
        np.testing.assert_array_equal(speaking.generate(TEXT, voice=path, **GIVEN), first)
        return count() - before

    def anew():
        """The bundle opened again with nothing in memory, as in another process."""
        return VoxCPM(tts.bundle, tts.driver)

    in_memory, from_file = again(tts), again(anew())
    (prefix,) = prefix_files(path)
    content = prefix.read_bytes()
    undigested = save({name: np.zeros_like(array) for name, array in load_tensors(content)[0].items()})
    for damaged in (content[:-1], undigested):
        prefix.write_bytes(damaged)
        assert in_memory == from_file < again(anew())
        assert prefix.read_bytes() == content


def test_text_that_merges_with_the_transcripts_last_token(tts, audio):
    """The tokenizer joins the ends of transcript and text, so only the common positions of the lead may be used."""
    plain = tts.bundle.tokenizer
    voice = tts.create_voice(audio[0], "so it is", name="ada")

    class Joining:
        unknown_characters = staticmethod(plain.unknown_characters)
        has_letters_only = plain.has_letters_only

        def __call__(self, text):
            ids = plain(text)
            if text != "so it is" and text.startswith("so it is"):
                ids[7:9] = [40]  # "is" + "h": one token instead of two
            return ids

    tts.bundle.__dict__["tokenizer"] = Joining()
    alone = tts.generate(TEXT, audio[0], "so it is", **GIVEN)
    np.testing.assert_array_equal(tts.generate(TEXT, voice=voice, **GIVEN), alone)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: path.unlink(), "no such file"),
        (lambda path: path.write_bytes(path.read_bytes()[:-9]), "expected a voice file"),
        (lambda path: save_file({"prompt": np.zeros((1, 2, 4), np.float32)}, path), "expected a voice file"),
        (
            lambda path: _with(path, {"prompt": np.full((3, 2, 4), np.nan, np.float32)}),
            "is not finite float32",
        ),
        (lambda path: _with(path, {"prompt": np.zeros((2, 2, 4), np.float32)}), "3 patches, its prompt 2"),
        (lambda path: _with(path, format=4), "expected format 1, found 4"),
        (lambda path: _with(path, digest=False), "its digest is missing"),
        (lambda path: _with(path, turns=[{"text": "a", "patches": -1}]), "turns.0.patches"),
    ],
)
def test_invalid_voice_file_is_rejected(tts, audio, tmp_path, spoil, message):
    path = tmp_path / "ada.voice"
    tts.create_voice(audio[0], "so it is ", name="ada").save(path)
    spoil(path)
    with pytest.raises(InputError, match=message):
        tts.generate(TEXT, voice=path)


def _with(path, tensors=None, digest=True, **changes):
    """The file with other tensors or another header and a matching digest, as if forged."""
    found, metadata = load_tensors(path.read_bytes())
    header = {**json.loads(metadata["voice"]), **changes}
    tensors = found if tensors is None else tensors
    if digest:
        path.write_bytes(dump_tensors(tensors, {"voice": json.dumps(header)}))
    else:
        save_file(tensors, path, {"voice": json.dumps(header)})


def test_voice_with_a_flipped_byte_is_rejected_or_unchanged(tts, audio, tmp_path):
    path = tmp_path / "ada.voice"
    voice = tts.create_voice(audio[0], "so it is ", name="ada").save(path)
    content = path.read_bytes()
    rng = np.random.default_rng(0)
    for position in range(0, len(content), 5):
        damaged = bytearray(content)
        damaged[position] ^= int(rng.integers(1, 256))
        path.write_bytes(damaged)
        # Whitespace after the header is arbitrary.
        with contextlib.suppress(InputError):
            found = Voice.load(path)
            assert (found, found.header) == (voice, voice.header), position


def test_a_dialogue_is_bounded_by_its_window_and_keeps_the_recording(tts, audio):
    voice = tts.create_voice(audio[0], "so it is ", name="ada")
    recorded = voice.prompt
    turns = [np.full((4, 2, 4), number, np.float32) for number in range(5)]
    for number, latents in enumerate(turns):
        voice = voice.extended(f"turn {number}. ", latents, window_patches=3 + 8)
        assert voice.prompt_patches <= 11
    assert voice.transcript == "so it is turn 3. turn 4. "
    np.testing.assert_array_equal(voice.prompt, np.concatenate([recorded, turns[3], turns[4]]))
    # All turns are dropped for a long one.
    assert (
        voice.extended("long. ", np.zeros((7, 2, 4), np.float32), window_patches=11).transcript
        == "so it is long. "
    )
    # A turn that does not fit at all changes nothing.
    assert voice.extended("long. ", np.zeros((20, 2, 4), np.float32), window_patches=11) == voice
