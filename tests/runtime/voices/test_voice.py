"""Saved voices equal their recordings, work with every bundle of their generation, and report bad recordings."""

import io
import json

import numpy as np
import pytest
import soundfile
from safetensors.numpy import save, save_file

from voxcpm_constants.errors import InputError
from voxcpm_constants.tensor_files import dump_tensors, load_tensors
from voxcpm_runtime.audio.reading import read_audio
from voxcpm_runtime.voices.prefix_cache import prefix_files
from voxcpm_runtime.voices.recording_faults import pace_faults, raised
from voxcpm_runtime.voices.store import VoiceStore
from voxcpm_runtime.voices.voice import Voice
from voxcpm_runtime.voxcpm import VoxCPM
from voxcpm_validation.measures import agreement

TEXT = "hello there."
GIVEN = {"seed": 3, "min_len": 6, "max_len": 8, "retry_badcase": False}
AUDIO, OTHER = (
    (np.random.default_rng(samples).standard_normal(samples).astype(np.float32) * 0.1, 1000)
    for samples in (45, 61)
)
RECORDINGS = {
    "prompt": (
        {"audio": AUDIO, "transcript": "so it is "},
        {"prompt_wav_path": AUDIO, "prompt_text": "so it is "},
    ),
    "reference": ({"audio": AUDIO}, {"reference_wav_path": AUDIO}),
    "both": (
        {"audio": AUDIO, "transcript": "so ", "reference": OTHER},
        {"prompt_wav_path": AUDIO, "prompt_text": "so ", "reference_wav_path": OTHER},
    ),
}


@pytest.fixture(params=RECORDINGS)
def recordings(request, architecture):
    """What a voice is made of, and the same as arguments of `generate`."""
    if request.param != "prompt" and architecture.generation == "voxcpm":
        pytest.skip("a reference voice needs VoxCPM2")
    return RECORDINGS[request.param]


def test_voice_equals_its_recordings(tts, recordings, tmp_path):
    made_of, given = recordings
    expected = tts.generate(TEXT, **given, **GIVEN)
    voice = tts.create_voice(**made_of, name="ada")
    assert voice.header.sample_rate == tts.bundle.architecture.input_sample_rate
    path = tmp_path / "ada.voice"
    voice.save(path)
    for source in (voice, Voice.load(path), path, str(path)):
        np.testing.assert_array_equal(tts.generate(TEXT, voice=source, **GIVEN), expected)
    streamed = np.concatenate(list(tts.generate_streaming(TEXT, voice=voice, **GIVEN)))
    np.testing.assert_array_equal(streamed, expected)


def test_cached_prefix_is_not_recomputed(tts, recordings, tmp_path, models):
    made_of, _ = recordings
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


def test_text_that_merges_with_the_transcripts_last_token(tts):
    """The tokenizer joins the ends of transcript and text, so only the common positions of the lead may be used."""
    plain = tts.bundle.tokenizer
    voice = tts.create_voice(AUDIO, "so it is", name="ada")

    class Joining:
        unknown_characters = staticmethod(plain.unknown_characters)
        has_letters_only = plain.has_letters_only

        def __call__(self, text):
            ids = plain(text)
            if text != "so it is" and text.startswith("so it is"):
                ids[7:9] = [40]  # "is" + "h": one token instead of two
            return ids

    tts.bundle.__dict__["tokenizer"] = Joining()
    alone = tts.generate(TEXT, AUDIO, "so it is", **GIVEN)
    np.testing.assert_array_equal(tts.generate(TEXT, voice=voice, **GIVEN), alone)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: path.unlink(), "no such file"),
        (lambda path: path.write_bytes(path.read_bytes()[:-9]), "expected a voice file"),
        (lambda path: save_file({"prompt": np.zeros((1, 2, 4), np.float32)}, path), "expected a voice file"),
        (lambda path: _with(path, {"prompt": np.full((3, 2, 4), np.nan, np.float32)}), "is not finite"),
        (lambda path: _with(path, {"prompt": np.zeros((2, 2, 4), np.float32)}), "3 patches, its prompt 2"),
        (lambda path: _with(path, format=4), "expected format 1, found 4"),
        (lambda path: _with(path, digest=False), "its digest is missing"),
        (lambda path: _with(path, turns=[{"text": "a", "patches": -1}]), "turns.0.patches"),
    ],
)
def test_invalid_voice_file_is_rejected(tts, tmp_path, spoil, message):
    path = tmp_path / "ada.voice"
    tts.create_voice(AUDIO, "so it is ", name="ada").save(path)
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


def test_a_dialogue_is_bounded_by_its_window_and_keeps_the_recording(tts):
    voice = tts.create_voice(AUDIO, "so it is ", name="ada")
    recorded = voice.prompt
    turns = [np.full((4, 2, 4), number, np.float32) for number in range(5)]
    for number, latents in enumerate(turns):
        voice = voice.extended(f"turn {number}. ", latents, window_patches=3 + 8)
        assert voice.prompt_patches <= 11
    assert voice.transcript == "so it is turn 3. turn 4. "
    np.testing.assert_array_equal(voice.prompt, np.concatenate([recorded, turns[3], turns[4]]))
    # All turns are dropped for a long one.
    longer = voice.extended("long. ", np.zeros((7, 2, 4), np.float32), window_patches=11)
    assert longer.transcript == "so it is long. "
    # A turn that does not fit at all changes nothing.
    assert voice.extended("long. ", np.zeros((20, 2, 4), np.float32), window_patches=11) == voice


TRANSCRIPT = (
    "Just by listening a few minutes a day, you'll be able to eliminate negative thoughts by conditioning "
    "your mind to be more positive."
)


@pytest.fixture
def speech(shared_data):
    """Real speech (samples, 2), and its rate in Hz."""
    return soundfile.read(shared_data / "audio" / "example_en.wav", dtype="float32", always_2d=True)


def test_real_speech_is_unchanged_and_fits_its_transcript(speech):
    samples, rate = speech
    mono = samples.mean(axis=1)
    same, faults = raised(mono, "prompt audio")
    assert same is mono
    assert faults == []
    for times in (1, 2):
        assert pace_faults(mono, rate, TRANSCRIPT * times) == []


@pytest.mark.parametrize("times", [5, 1 / 5])
def test_transcript_of_another_recording_is_reported(speech, times):
    samples, rate = speech
    transcript = (TRANSCRIPT * 5)[: int(len(TRANSCRIPT) * times)]
    (fault,) = pace_faults(samples.mean(axis=1), rate, transcript)
    assert "the prompt has 8.1 s of sound, but its transcript takes about" in fault


def test_quiet_recording_is_raised_and_reported_below_54_db(speech):
    mono = speech[0].mean(axis=1)
    # Its level is -16 dB.
    quiet, faults = raised(mono * np.float32(10 ** (-30 / 20)), "prompt audio")
    assert 20 * np.log10(np.sqrt(np.mean(quiet**2))) == pytest.approx(-22, abs=0.1)
    assert faults == []
    quietest, (fault,) = raised(mono * np.float32(10 ** (-40 / 20)), "prompt audio")
    assert "prompt audio: very quiet, -56 dBFS" in fault
    np.testing.assert_allclose(quietest, quiet, atol=1e-4)
    # A click does not clip.
    clicking = np.full(20_000, 1e-4, np.float32) * np.tile([1, -1], 10_000)
    clicking[7] = 0.5
    assert np.abs(raised(clicking, "prompt audio")[0]).max() < 1


def test_channels_that_cancel_leave_the_first_alone(speech):
    samples, rate = speech
    inverted = np.stack([samples[:, 0], -0.9 * samples[:, 0]], axis=1)
    file = io.BytesIO()
    soundfile.write(file, inverted, rate, format="WAV", subtype="FLOAT")
    for source in ((inverted, rate), file.getvalue()):
        with pytest.warns(UserWarning, match="prompt audio: its channels cancel each other"):
            np.testing.assert_array_equal(read_audio(source, rate, what="prompt audio"), samples[:, 0])
    # Independent channels, or a silent one, are averaged.
    shifted = np.stack([samples[:, 0], np.roll(samples[:, 0], rate)], axis=1)
    for both in (samples, shifted, samples * np.float32([1, 0])):
        np.testing.assert_allclose(read_audio((both, rate), rate), both.mean(axis=1), atol=1e-6)


def test_faults_are_reported_before_speaking(tts):
    noise = np.random.default_rng(0).standard_normal(4000).astype(np.float32) * np.float32(0.0015)
    with pytest.warns(UserWarning, match=":|sound") as found:
        voice = tts.create_voice((noise, 1000), "so it is.", name="ada")
    messages = [str(warning.message) for warning in found]
    assert messages == [*voice.faults]
    assert [message.partition(":")[0] for message in messages[:1]] == ["prompt audio"]
    assert "the prompt has 3.8 s of sound" in messages[1]
    with pytest.raises(InputError, match="it is silent"):
        tts.create_voice((noise * 0.1, 1000), "so it is.", name="ada")


FIXED = {"seed": 3, "min_len": 6, "max_len": 6, "retry_badcase": False}


# Heads of random weights follow nothing.
@pytest.mark.filterwarnings("ignore:segment")
@pytest.mark.parametrize(("bundle", "precision"), [("tiny_bundle", "fp32"), ("tiny_bundle_15", "fp16")])
def test_a_voice_speaks_on_every_bundle_of_its_generation(request, tiny_bundle, tmp_path, bundle, precision):
    clip = (np.random.default_rng(0).standard_normal(1600).astype(np.float32) * 0.1, 16000)
    path = tmp_path / "ada.voice"
    with VoxCPM.from_bundle(tiny_bundle, precision="int8") as tts:
        tts.create_voice(clip, "the you and ", name="ada").save(path)
    with VoxCPM.from_bundle(request.getfixturevalue(bundle), precision=precision) as tts:
        first, again = (tts.speak("and the world", voice=path, **FIXED).latents for _ in "12")
        own = tts.speak("and the world", clip, "the you and ", **FIXED).latents
        other = tts.speak("and the world", **FIXED).latents
    with VoxCPM.from_bundle(request.getfixturevalue(bundle), precision=precision) as tts:
        from_file = tts.speak("and the world", voice=path, **FIXED).latents
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(first, from_file)
    assert len(list(prefix_files(path))) == 1
    # Another precision has its own saved states.
    with VoxCPM.from_bundle(tiny_bundle, precision="int8") as tts:
        tts.generate("and", voice=path, **FIXED)
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
