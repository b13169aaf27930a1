"""Recordings are decoded in bounded memory; what is not audio, or is silent, is refused in one line."""

from __future__ import annotations

import contextlib
import io
import os
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import soundfile

from voxcpm_constants import bounded_files
from voxcpm_constants.errors import InputError
from voxcpm_runtime.audio.decoding import decode_audio
from voxcpm_runtime.audio.files import read_audio

RATE = 16000
FORMS = {
    "wav": ("WAV", "PCM_16"),
    "float": ("WAV", "FLOAT"),
    "extensible": ("WAVEX", "PCM_16"),
    "rf64": ("RF64", "PCM_16"),
    "w64": ("W64", "PCM_16"),
    "flac": ("FLAC", "PCM_16"),
    "aiff": ("AIFF", "PCM_16"),
    "au": ("AU", "PCM_16"),
    "caf": ("CAF", "PCM_16"),
    "ogg": ("OGG", "VORBIS"),
    "opus": ("OGG", "OPUS"),
    "mp3": ("MP3", "MPEG_LAYER_III"),
}


def sound(seconds: float, gain: float = 0.3) -> np.ndarray:
    rng = np.random.default_rng(0)
    return (gain * rng.standard_normal(int(seconds * RATE)) / 4).astype(np.float32)


def encoded(form: str, samples: np.ndarray) -> bytes:
    file = io.BytesIO()
    container, subtype = FORMS[form]
    soundfile.write(file, samples, RATE, format=container, subtype=subtype)
    return file.getvalue()


@pytest.mark.parametrize("form", FORMS)
def test_a_recording_has_the_samples_of_libsndfile_and_a_truncated_one_those_that_it_has(form):
    samples = sound(2)
    content = encoded(form, samples)
    whole, rate = decode_audio(content, "prompt audio")
    assert (len(whole), rate) == (len(samples), RATE)
    exact, _ = soundfile.read(io.BytesIO(content), dtype="float32")
    np.testing.assert_allclose(whole, exact, atol=1e-7)

    # A FLAC or MP3 decodes to fewer samples, or to none in one line.
    with contextlib.suppress(InputError):
        part, _ = decode_audio(content[: len(content) * 9 // 10], "prompt audio")
        assert len(part) < len(exact)
        np.testing.assert_allclose(part, exact[: len(part)], atol=1e-3)


@pytest.mark.parametrize(
    ("riff", "data"),
    [(0xFFFFFFFF, 0xFFFFFFFF), (0x80000024, 0x80000000)],
)
def test_a_wav_file_that_was_streamed_does_not_know_its_length_and_is_whole(riff, data):
    content = bytearray(encoded("wav", sound(1)))
    at = content.index(b"data")
    content[4:8], content[at + 4 : at + 8] = struct.pack("<I", riff), struct.pack("<I", data)

    assert len(decode_audio(bytes(content), "prompt audio")[0]) == RATE


def streamed_flac(seconds: float) -> bytes:
    """A FLAC whose header does not say how long it is: 36 bits of STREAMINFO are zero."""
    content = bytearray(encoded("flac", sound(seconds)))
    content[21] &= 0xF0
    content[22:26] = bytes(4)
    return bytes(content)


@pytest.mark.parametrize("seconds", [0.5, 1, 65536 / RATE, 10])
def test_a_flac_without_a_length_has_the_samples_of_one_with_it(seconds):
    whole, _ = decode_audio(encoded("flac", sound(seconds)), "prompt audio")

    streamed, rate = decode_audio(streamed_flac(seconds), "prompt audio")

    assert rate == RATE
    np.testing.assert_array_equal(streamed, whole)


@pytest.mark.parametrize("form", ["wav", "flac", "streamed flac"])
def test_as_many_samples_as_the_bound_are_taken_and_one_more_is_not(monkeypatch, form):
    content = streamed_flac(20) if form == "streamed flac" else encoded(form, sound(20))

    monkeypatch.setattr("voxcpm_runtime.audio.decoding.MAX_RECORDING_SAMPLES", 20 * RATE)
    assert len(decode_audio(content, "prompt audio")[0]) == 20 * RATE
    monkeypatch.setattr("voxcpm_runtime.audio.decoding.MAX_RECORDING_SAMPLES", 20 * RATE - 1)
    with pytest.raises(
        InputError, match="prompt audio: more than 319999 samples, the maximum of a recording"
    ):
        decode_audio(content, "prompt audio")


def peak_bytes(read) -> int:
    """The most bytes that are held at once while `read` runs."""
    tracemalloc.start()
    try:
        read()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_recording_is_held_once():
    """Its samples, and the mask of those that are finite, which has a quarter of their bytes."""
    samples = np.repeat(sound(120)[:, np.newaxis], 2, axis=1)
    content, one = encoded("wav", samples), len(samples) * 4

    assert peak_bytes(lambda: decode_audio(content, "prompt audio")) < 1.2 * one
    assert peak_bytes(lambda: read_audio(content, RATE)) < 1.5 * one
    assert peak_bytes(lambda: read_audio((samples, RATE), RATE)) < 1.5 * one


def test_a_sparse_file_of_gigabytes_is_not_read(tmp_path):
    path = tmp_path / "sparse.wav"
    path.write_bytes(encoded("wav", sound(1)))
    with path.open("r+b") as file:
        file.truncate(4 << 30)

    with pytest.raises(InputError, match="at most 268435456 bytes are read, and it has 4294967296 bytes"):
        read_audio(path, RATE, what="prompt audio")


def test_a_file_with_too_many_channels_is_refused():
    with pytest.raises(InputError, match="at most 8 channels, got 16000 Hz and 9"):
        decode_audio(encoded("wav", np.zeros((RATE, 9), np.float32)), "prompt audio")


def test_a_header_that_asks_for_a_place_before_the_file_prints_no_traceback(capfd):
    content = (Path(__file__).parents[2] / "robustness" / "corpus" / "recording.seek.aiff").read_bytes()

    with pytest.raises(InputError, match="cannot be read"):
        decode_audio(content, "prompt audio")

    assert capfd.readouterr().err == ""


@pytest.fixture
def fifo(tmp_path, monkeypatch):
    if not hasattr(os, "mkfifo"):
        pytest.skip("needs named pipes")
    monkeypatch.setattr(bounded_files, "MAX_PIPE_SECONDS", 0.3)
    os.mkfifo(tmp_path / "fifo")
    return tmp_path / "fifo"


def test_a_pipe_that_nobody_writes_to_is_given_up(fifo):
    with pytest.raises(InputError, match=r"nothing came from the pipe for 0\.3 seconds"):
        read_audio(fifo, RATE, what="prompt audio")


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (
            np.zeros(2000, np.float32),
            r"silence throughout: its peak is 0 \(digital silence\), below the minimum of 0.001 \(-60 dB\)",
        ),
        (sound(0.2, 0.001), r"silence throughout: its peak is 0\.0\d+ \(-\d\d dB\)"),
        (np.full(2000, 0.5, np.float32), "silence throughout"),
    ],
)
@pytest.mark.parametrize("trimmed", [False, True])
def test_a_silent_prompt_is_refused_with_what_was_measured(tts, samples, message, trimmed):
    with pytest.raises(InputError, match=f"prompt audio: {message}"):
        tts.plan("hi", (samples, 1000), "so", trim_silence_vad=trimmed)
