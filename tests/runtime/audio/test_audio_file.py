import io
import os
from pathlib import Path

import numpy as np
import pytest
import soundfile

from voxcpm_constants.errors import InputError
from voxcpm_runtime.audio.files import FORMATS, check_output_path, read_audio, write_audio

RATE = 16000


def sine(rate, seconds=0.5, hertz=440.0):
    return (0.5 * np.sin(2 * np.pi * hertz * np.arange(int(rate * seconds)) / rate)).astype(np.float32)


@pytest.mark.parametrize("rate", [8000, 44100])
def test_a_sine_is_the_same_sine_at_another_rate(rate):
    audio = read_audio((sine(rate), rate), RATE)

    assert audio.dtype == np.float32
    assert abs(len(audio) - RATE // 2) <= 1
    # The filter rings at the ends.
    np.testing.assert_allclose(audio[400:-400], sine(RATE)[: len(audio)][400:-400], atol=2e-3)


def test_a_path_bytes_a_file_and_an_array_are_the_same(tmp_path):
    path = tmp_path / "prompt.wav"
    stereo = np.stack([sine(RATE), 0.2 * sine(RATE)], axis=1)
    soundfile.write(path, stereo, RATE, subtype="FLOAT")
    mean = (stereo[:, 0] + stereo[:, 1]) / 2

    content = path.read_bytes()
    in_memory = (content, bytearray(content), memoryview(content), io.BytesIO(content))
    for source in (path, str(path), *in_memory, (stereo, RATE)):
        np.testing.assert_allclose(read_audio(source, RATE), mean, atol=1e-7)


def test_a_file_is_read_from_its_position_on(tmp_path):
    path = tmp_path / "prompt.bin"
    wav = io.BytesIO()
    soundfile.write(wav, sine(RATE), RATE, format="WAV", subtype="FLOAT")
    path.write_bytes(b"something else" + wav.getvalue())

    with path.open("rb") as file:
        file.seek(len(b"something else"))
        np.testing.assert_array_equal(read_audio(file, RATE), sine(RATE))
        with pytest.raises(InputError, match="was read to its end before"):
            read_audio(file, RATE)


@pytest.mark.parametrize("ending", [".wav", ".mp3"])
def test_a_pipe_is_read_as_a_file_is(tmp_path, ending):
    path = tmp_path / f"prompt{ending}"
    write_audio(path, sine(RATE, 0.25), RATE)
    reader, writer = os.pipe()
    with os.fdopen(writer, "wb") as file:
        file.write(path.read_bytes())

    with os.fdopen(reader, "rb") as pipe:
        np.testing.assert_array_equal(read_audio(pipe, RATE), read_audio(path, RATE))


def test_the_home_folder_may_be_a_tilde(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))

    assert write_audio("~/prompt.wav", sine(RATE), RATE) == 0

    for path in ("~/prompt.wav", Path("~/prompt.wav")):
        assert len(read_audio(path, RATE)) == len(sine(RATE))


@pytest.mark.parametrize(
    ("subtype", "error"),
    [("PCM_U8", 2**-7), ("PCM_16", 2**-15), ("PCM_24", 2**-23), ("PCM_32", 2**-24), ("DOUBLE", 2**-24)],
)
@pytest.mark.parametrize("channels", [1, 6])
def test_every_width_and_number_of_channels_of_a_wav_file(tmp_path, subtype, error, channels):
    path = tmp_path / "prompt.wav"
    gains = np.arange(1, channels + 1) / channels
    soundfile.write(path, sine(RATE)[:, np.newaxis].astype(np.float64) * gains, RATE, subtype=subtype)

    np.testing.assert_allclose(read_audio(path, RATE), sine(RATE) * gains.mean(), atol=error)


# uint8 as in an 8-bit WAV file: silence is 128.
@pytest.mark.parametrize(
    ("dtype", "zero", "one"),
    [("uint8", 128, 128), ("int16", 0, 2**15), ("int32", 0, 2**31), ("float16", 0, 1), ("float64", 0, 1)],
)
def test_samples_are_scaled_to_one(dtype, zero, one):
    samples = (zero + np.array([0.5, -0.25, 0.0]) * one).astype(dtype)

    np.testing.assert_allclose(read_audio((samples, RATE), RATE), [0.5, -0.25, 0.0], atol=1e-6)


def float_wav(samples):
    """The bytes of a WAV file with these samples (samples, channels) as they are."""
    file = io.BytesIO()
    soundfile.write(file, np.array(samples, np.float32), RATE, format="WAV", subtype="FLOAT")
    return file.getvalue()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nowhere.wav", "prompt audio nowhere.wav: no such file"),
        (b"this is no audio", "expected an audio file"),
        ((np.zeros((0, 2), np.float32), RATE), "it is empty"),
        ((np.array([0.0, np.nan], np.float32), RATE), "NaN or infinite"),
        ((np.zeros(99, np.float32), RATE), "0.006 s long, but the minimum is one patch, 0.006 s"),
        ((np.zeros(16, np.float32), 1600), "0.010 s long, but the minimum is one patch"),
        ((np.zeros((2, 2, 2), np.float32), RATE), "shape"),
        ((np.zeros(500, np.int64), RATE), "got int64"),
        ((np.zeros((2, 500), np.float32), RATE), r"\(2, 500\); transpose"),
        ((np.full(500, 3e4, np.float32), RATE), "peak of 30000; scale"),
        ((np.full(500, 1e300), RATE), "NaN or infinite"),
        (float_wav([[np.inf, -np.inf]] * 9), "NaN or infinite"),
        (float_wav([[3e38, 3e38]] * 9), "NaN or infinite"),
        ((np.zeros(500, np.float32), 44100.0), "sample rate"),
        ((np.zeros(500, np.float32), 10**9), "from 1 to 384000, got 1000000000"),
        ((np.zeros(500, np.float32), RATE, 1), "got a tuple of 3"),
        (np.zeros(500, np.float32), "got ndarray"),
        (None, "got NoneType"),
        (io.StringIO("text"), 'mode "rb"'),
        ("a\0b.wav", "no null character"),
        (".", "cannot be read"),
        ("~nobody-of-this-name/a.wav", "no user of this name"),
        (b"RIFF\x24\0\0\0WAVEfmt ", "expected an audio file"),
    ],
)
def test_what_cannot_be_used_is_one_line(source, message):
    least = 100 if message != "0.010 s long, but the minimum is one patch" else 200
    with pytest.raises(InputError, match=message) as caught:
        read_audio(source, RATE, min_samples=least, what="prompt audio")
    assert "\n" not in str(caught.value)


def test_wav_is_sixteen_bit_and_clipped(tmp_path):
    path = tmp_path / "out.wav"

    clipped = write_audio(path, np.array([0.0, 1.0, -1.0, 1.5, -2.0, 0.5], np.float32), RATE)

    assert clipped == 2
    samples, rate = soundfile.read(path, dtype="int16")
    assert (rate, soundfile.info(path).subtype) == (RATE, "PCM_16")
    assert samples.tolist() == [0, 32767, -32767, 32767, -32767, 16384]


@pytest.mark.parametrize("ending", FORMATS)
@pytest.mark.parametrize("rate", [16000, 48000])
def test_every_ending_is_written_and_read_back(tmp_path, ending, rate):
    path = tmp_path / f"out{ending}"
    try:
        check_output_path(path)
    except InputError as error:
        pytest.skip(str(error))

    write_audio(path, sine(rate), rate)

    back = read_audio(path, rate)
    assert abs(len(back) / rate - 0.5) < 0.1
    middle = back[len(back) // 4 : -len(back) // 4]
    assert np.sqrt(np.mean(middle**2)) == pytest.approx(0.5 / np.sqrt(2), abs=0.02)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a file/out.wav", "a file is not a folder"),
        ("out.txt", "expected a name that ends in .wav"),
        ("out", "no ending"),
        ("folder.wav", "it is a folder"),
        (f"new/{'a' * 300}.wav", "cannot be written"),
        ("new/b\0c/out.wav", "no null character"),
    ],
)
def test_a_path_that_cannot_be_written_is_known_before(tmp_path, name, message):
    (tmp_path / "folder.wav").mkdir()
    (tmp_path / "a file").touch()

    with pytest.raises(InputError, match=message):
        check_output_path(tmp_path / name)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_an_interrupted_write_leaves_what_was_there(tmp_path, monkeypatch, interruption):
    path = tmp_path / "out.wav"
    path.write_bytes(b"old")

    def write(file, *_, **__):
        file.write(b"half a")
        raise interruption

    monkeypatch.setattr(soundfile, "write", write)
    with pytest.raises((KeyboardInterrupt, InputError)):
        write_audio(path, sine(RATE), RATE)

    assert path.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["out.wav"]


@pytest.mark.parametrize("ending", FORMATS)
def test_what_is_no_number_is_not_written(tmp_path, ending):
    """The MP3 encoder would abort the process."""
    with pytest.raises(InputError, match="expected finite samples"):
        write_audio(tmp_path / f"out{ending}", np.full(5000, np.nan, np.float32), RATE)
    assert not list(tmp_path.iterdir())
