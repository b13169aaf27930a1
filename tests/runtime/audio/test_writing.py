"""Writing audio: complete files or none, 16-bit samples, and edges without clicks."""

import tracemalloc

import numpy as np
import pytest
import soundfile

from voxcpm_constants.errors import InputError
from voxcpm_runtime.audio.files import FORMATS, check_output_path, write_audio, write_audio_file
from voxcpm_runtime.audio.pcm import faded_in, faded_out
from voxcpm_runtime.audio.reading import read_audio

RATE = 16000
FADE = 80  # 5 ms


def sine(rate, seconds=0.5, hertz=440.0):
    return (0.5 * np.sin(2 * np.pi * hertz * np.arange(int(rate * seconds)) / rate)).astype(np.float32)


def test_wav_is_16_bit_and_clipped(tmp_path):
    path = tmp_path / "out.wav"
    assert write_audio(path, np.array([0.0, 1.0, -1.0, 1.5, -2.0, 0.5], np.float32), RATE) == 2
    samples, rate = soundfile.read(path, dtype="int16")
    assert (rate, soundfile.info(path).subtype) == (RATE, "PCM_16")
    assert samples.tolist() == [0, 32767, -32767, 32767, -32767, 16384]


@pytest.mark.parametrize("ending", FORMATS)
def test_every_extension_round_trips(tmp_path, ending):
    rate = 44100  # which Opus does not have
    path = tmp_path / f"out{ending}"
    try:
        check_output_path(path)
    except InputError as error:
        pytest.skip(str(error))
    write_audio(path, sine(rate), rate)
    assert soundfile.info(path).samplerate >= rate
    back = read_audio(path, rate)
    assert abs(len(back) / rate - 0.5) < 0.1
    middle = back[len(back) // 4 : -len(back) // 4]
    assert np.sqrt(np.mean(middle**2)) == pytest.approx(0.5 / np.sqrt(2), abs=0.02)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("ending", [".wav", ".flac", ".opus"])
def test_a_long_file_is_encoded_and_resampled_in_pieces(tmp_path, ending):
    noise = np.random.default_rng(0).uniform(-0.5, 0.5, 60 * 44_100).astype(np.float32)  # 5 MB as WAV
    tracemalloc.start()
    write_audio(tmp_path / f"long{ending}", noise, 44_100)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3_000_000
    assert soundfile.info(tmp_path / f"long{ending}").duration == pytest.approx(60, abs=0.05)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a file/out.wav", "a file is not a folder"),
        ("out.txt", "expected a name that ends in .wav"),
        ("folder.wav", "it is a folder"),
        ("new/b\0c/out.wav", "cannot contain a null character"),
        ("read-only/a.wav", "Permission denied"),
    ],
)
def test_unwritable_path_fails_early(tmp_path, monkeypatch, name, message):
    (tmp_path / "folder.wav").mkdir()
    (tmp_path / "a file").touch()
    if name.startswith("read-only"):
        monkeypatch.setattr("os.access", lambda *_: False)  # root may write everywhere
    with pytest.raises(InputError, match=message):
        check_output_path(tmp_path / name)
    assert {path.name for path in tmp_path.iterdir()} == {"folder.wav", "a file"}


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_interrupted_write_preserves_the_old_file(tmp_path, interruption):
    path = tmp_path / "out.wav"
    path.write_bytes(b"old")

    def interrupted(_):
        raise interruption

    with pytest.raises((KeyboardInterrupt, InputError)):
        write_audio(path, sine(RATE), RATE, record=interrupted)
    assert path.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["out.wav"]


def test_writers_use_separate_temporary_files_and_stale_ones_are_removed(tmp_path):
    path = tmp_path / "out.wav"
    (tmp_path / ".out.wav.0.part").write_bytes(b"left by a process that was killed")
    write_audio(path, sine(RATE), RATE, record=lambda _: write_audio_file(path, b"meanwhile"))
    assert soundfile.info(path).frames == RATE // 2
    assert [file.name for file in tmp_path.iterdir()] == ["out.wav"]


@pytest.mark.parametrize("ending", [".wav", ".mp3"])
def test_nan_is_not_written(tmp_path, ending):
    """The MP3 encoder would abort the process."""
    with pytest.raises(InputError, match="expected finite samples"):
        write_audio(tmp_path / f"out{ending}", np.full(5000, np.nan, np.float32), RATE)
    assert not list(tmp_path.iterdir())


def test_fades_remove_steps_at_the_edges():
    constant = np.full(1000, 0.5, np.float32)
    faded = faded_out(faded_in(constant, RATE), RATE)
    joined = np.concatenate([np.zeros(10, np.float32), faded, np.zeros(10, np.float32)])
    assert np.abs(np.diff(constant, prepend=0, append=0)).max() == 0.5
    # The steepest part of half a cosine of amplitude 0.5 over 80 samples: 0.25 · pi / 80.
    assert np.abs(np.diff(joined)).max() == pytest.approx(0.25 * np.pi / FADE, rel=0.01)
    assert faded.dtype == np.float32
    np.testing.assert_array_equal(faded[FADE:-FADE], constant[FADE:-FADE])


def test_silent_edges_are_unchanged_and_short_audio_is_faded_whole():
    quiet = np.concatenate(
        [np.full(FADE, 0.003), np.full(100, 0.5), np.full(FADE, -0.003)]
    )  # -50.5 dBFS, then -6
    np.testing.assert_array_equal(faded_out(faded_in(quiet, RATE), RATE), quiet)
    assert faded_out(np.ones(7, np.float32), RATE)[-1] == 0.0
    assert len(faded_out(np.ones(0, np.float32), RATE)) == 0
