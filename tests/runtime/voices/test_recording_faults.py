"""Recordings that would spoil the speech are reported before it, and quiet ones made louder."""

import io

import numpy as np
import pytest
import soundfile

from voxcpm_constants.errors import InputError
from voxcpm_runtime.audio.reading import read_audio
from voxcpm_runtime.voices.recording_faults import pace_faults, raised

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
