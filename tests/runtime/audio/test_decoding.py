"""Recordings are bounded before they are decoded; those that were cut off or are silent are refused."""

from __future__ import annotations

import io
import os
import struct
import threading
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import soundfile

from voxcpm_constants import bounded_files
from voxcpm_constants.errors import InputError
from voxcpm_runtime.audio.decoding import decode_audio
from voxcpm_runtime.audio.files import read_audio
from voxcpm_runtime.commands import cli

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
def test_a_recording_that_was_cut_off_is_refused_and_a_whole_one_is_not(form):
    samples = sound(2)
    content = encoded(form, samples)
    whole, rate = decode_audio(content, "prompt audio")
    assert (len(whole), rate) == (len(samples), RATE)
    exact, _ = soundfile.read(io.BytesIO(content), dtype="float32")
    np.testing.assert_allclose(whole, exact, atol=1e-7)

    for length in (len(content) // 2, len(content) * 9 // 10):
        with pytest.raises(
            InputError, match=r"^prompt audio: (cut off: its header says|expected an audio file)"
        ) as caught:
            decode_audio(content[:length], "prompt audio")
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("riff", "data"),
    [(0xFFFFFFFF, 0xFFFFFFFF), (0x7FFFFFFF, 0x7FFFFFFF), (0xFFFFFFFF, 0xFFFFFFDB), (0x80000024, 0x80000000)],
)
def test_a_wav_file_that_was_streamed_does_not_know_its_length_and_is_whole(riff, data):
    content = bytearray(encoded("wav", sound(1)))
    at = content.index(b"data")
    content[4:8], content[at + 4 : at + 8] = struct.pack("<I", riff), struct.pack("<I", data)

    assert len(decode_audio(bytes(content), "prompt audio")[0]) == RATE


def test_what_follows_the_samples_of_a_wav_file_may_be_missing():
    content = bytearray(encoded("wav", sound(1)))
    content[4:8] = struct.pack("<I", len(content) + 100)

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


def test_a_flac_without_a_length_is_decoded_up_to_the_bound():
    assert len(decode_audio(streamed_flac(5), "prompt audio", max_seconds=5)[0]) == 5 * RATE
    with pytest.raises(InputError, match="longer than 5 s, the most of a recording"):
        decode_audio(streamed_flac(30), "prompt audio", max_seconds=5)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_a_flac_without_a_length_that_was_cut_off_is_refused_in_one_line(share):
    content = streamed_flac(5)

    with pytest.raises(
        InputError, match="it has no length in its header, and it was cut off or damaged"
    ) as caught:
        decode_audio(content[: int(len(content) * share)], "prompt audio")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("riff", [0, 36, 0xFFFFFFFF])
def test_a_wav_file_whose_data_has_size_zero_goes_on_to_its_end(riff):
    content = bytearray(encoded("wav", sound(1)))
    whole, _ = decode_audio(bytes(content), "prompt audio")
    at = content.index(b"data")
    content[4:8], content[at + 4 : at + 8] = struct.pack("<I", riff), struct.pack("<I", 0)

    np.testing.assert_array_equal(decode_audio(bytes(content), "prompt audio")[0], whole)
    with pytest.raises(InputError, match=r"longer than 0\.5 s, the most of a recording"):
        decode_audio(bytes(content), "prompt audio", max_seconds=0.5)


def test_an_empty_wav_file_with_notes_after_it_is_empty():
    content = bytearray(encoded("wav", sound(0)) + b"LIST" + struct.pack("<I", 400) + b"INFO" + bytes(396))
    content[4:8] = struct.pack("<I", len(content) - 8)

    assert len(decode_audio(bytes(content), "prompt audio")[0]) == 0


def test_a_voice_is_made_of_a_streamed_flac(speaking, tmp_path):
    recording = tmp_path / "prompt.flac"
    recording.write_bytes(streamed_flac(0.2))
    given = ["--prompt", str(recording), "--prompt-text", "so.", "--text", "hello.", "--seed", "3", "-q"]
    (tmp_path / "whole.flac").write_bytes(encoded("flac", sound(0.2)))

    assert cli.main(["generate", speaking, *given, "-o", str(tmp_path / "a.wav")]) == 0
    given[1] = str(tmp_path / "whole.flac")
    assert cli.main(["generate", speaking, *given, "-o", str(tmp_path / "b.wav")]) == 0

    assert (tmp_path / "a.wav").read_bytes() == (tmp_path / "b.wav").read_bytes()


def test_a_day_of_silence_is_refused_by_its_header(tmp_path):
    """2 MB of FLAC: 11 GB of samples."""
    path = tmp_path / "day.flac"
    block = np.zeros(1 << 20, np.int16)
    with soundfile.SoundFile(path, "w", 48000, 1, "PCM_16", format="FLAC") as file:
        for _ in range(20 * 60 * 48000 // len(block) + 1):
            file.write(block)

    began = time.monotonic()
    with pytest.raises(InputError, match="longer than 1200 s, the most of a recording; cut it"):
        read_audio(path, RATE, what="prompt audio")
    assert time.monotonic() - began < 5


def test_samples_are_bounded_as_files_are():
    long = np.broadcast_to(np.float32(0.5), (1201 * 8000,))

    with pytest.raises(InputError, match="prompt audio: longer than 1200 s"):
        read_audio((long, 8000), RATE, what="prompt audio")


def test_samples_are_bounded_at_any_rate():
    """Five minutes at 192 kHz are as many samples as 20 at 48 kHz."""
    most = np.broadcast_to(np.float32(0.5), (57_600_001,))

    with pytest.raises(InputError) as caught:
        read_audio((most, 192_000), RATE, what="prompt audio")
    assert str(caught.value) == (
        "prompt audio: more than 57600000 samples, the most of a recording: at its 192000 Hz that is 300 s; "
        "resample it to 48000 Hz or less, or cut it"
    )


@pytest.mark.parametrize("form", ["wav", "flac", "streamed flac"])
def test_as_many_samples_as_the_bound_are_taken_and_one_more_is_not(monkeypatch, form):
    content = streamed_flac(20) if form == "streamed flac" else encoded(form, sound(20))

    monkeypatch.setattr("voxcpm_runtime.audio.decoding.MAX_RECORDING_SAMPLES", 20 * RATE)
    assert len(decode_audio(content, "prompt audio")[0]) == 20 * RATE
    monkeypatch.setattr("voxcpm_runtime.audio.decoding.MAX_RECORDING_SAMPLES", 20 * RATE - 1)
    with pytest.raises(InputError, match="prompt audio: more than 319999 samples, the most of a recording"):
        decode_audio(content, "prompt audio")


def test_arrays_have_as_many_channels_as_files():
    assert len(read_audio((np.full((RATE, 8), 0.5), RATE), RATE)) == RATE
    with pytest.raises(InputError, match="prompt audio: expected at most 8 channels, got 9"):
        read_audio((np.full((RATE, 9), 0.5), RATE), RATE, what="prompt audio")


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


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs a device without an end")
def test_a_device_is_no_recording():
    with pytest.raises(
        InputError, match=r"prompt audio /dev/zero: cannot be read \(it is neither a file nor a pipe"
    ):
        read_audio("/dev/zero", RATE, what="prompt audio")


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


def test_a_pipe_that_stops_in_the_middle_is_given_up(fifo):
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(fifo, os.O_WRONLY)
    try:
        os.write(writer, b"RIFF")
        with pytest.raises(InputError, match="nothing came from the pipe"):
            read_audio(fifo, RATE, what="prompt audio")
    finally:
        os.close(writer)
        os.close(reader)


def test_a_pipe_without_an_end_is_read_up_to_the_bound(fifo):
    stopped = threading.Event()

    def write() -> None:
        with fifo.open("wb", buffering=0) as file:
            try:
                while not stopped.is_set():
                    file.write(bytes(1 << 16))
            except BrokenPipeError:
                pass

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with pytest.raises(OSError, match="at most 1000000 bytes are read, and it has more"):
            bounded_files.read_bounded(fifo, 1_000_000)
    finally:
        stopped.set()
        writer.join()


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (
            np.zeros(2000, np.float32),
            r"silence throughout: its peak is 0 \(no sound at all\), and 0.001 \(-60 dB\)",
        ),
        (sound(0.2, 0.001), r"silence throughout: its peak is 0\.0\d+ \(-\d\d dB\)"),
        (np.full(2000, 0.5, np.float32), "silence throughout"),
    ],
)
@pytest.mark.parametrize("trimmed", [False, True])
def test_a_silent_prompt_is_refused_with_what_was_measured(tts, samples, message, trimmed):
    with pytest.raises(InputError, match=f"prompt audio: {message}"):
        tts.plan("hi", (samples, 1000), "so", trim_silence_vad=trimmed)


def test_a_quiet_recording_is_taken(tts):
    assert tts.plan("hi", (sound(1, 0.01)[:100], 1000), "so").voice.prompt_patches == 5
