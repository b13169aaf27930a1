"""Recordings are decoded in bounded memory; what is not audio, or is silent, is rejected in one line."""

import contextlib
import io
import struct
import sys
from pathlib import Path
from types import SimpleNamespace

import av
import numpy as np
import pytest
import soundfile

from voxcpm_constants.errors import InputError
from voxcpm_runtime.audio import phone_formats
from voxcpm_runtime.audio.reading import decode_audio, read_audio

RATE = 16000


FORMS = {
    "wav": ("WAV", "PCM_16"),
    "float": ("WAV", "FLOAT"),
    "flac": ("FLAC", "PCM_16"),
    "ogg": ("OGG", "VORBIS"),
    "opus": ("OGG", "OPUS"),
    "mp3": ("MP3", "MPEG_LAYER_III"),
}


def sine(rate):
    """Half a second of 440 Hz."""
    return (0.5 * np.sin(2 * np.pi * 440 * np.arange(rate // 2) / rate)).astype(np.float32)


def sound(seconds):
    return (0.08 * np.random.default_rng(0).standard_normal(int(seconds * RATE))).astype(np.float32)


def encoded(form, samples):
    file = io.BytesIO()
    container, subtype = FORMS[form]
    soundfile.write(file, samples, RATE, format=container, subtype=subtype)
    return file.getvalue()


@pytest.mark.parametrize("form", FORMS)
def test_decoded_samples_equal_libsndfile_and_truncated_files_decode(form):
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


def test_streamed_wav_of_unknown_length_is_read_whole():
    content = bytearray(encoded("wav", sound(1)))
    at = content.index(b"data")
    content[4:8], content[at + 4 : at + 8] = [struct.pack("<I", 0xFFFFFFFF)] * 2
    assert len(decode_audio(bytes(content), "prompt audio")[0]) == RATE


def streamed_flac(seconds):
    """A FLAC of unknown length: 36 bits of STREAMINFO are zero."""
    content = bytearray(encoded("flac", sound(seconds)))
    content[21] &= 0xF0
    content[22:26] = bytes(4)
    return bytes(content)


@pytest.mark.parametrize("seconds", [0.5, 65536 / RATE])
def test_flac_of_unknown_length_is_read_whole(seconds):
    whole, _ = decode_audio(encoded("flac", sound(seconds)), "prompt audio")
    streamed, rate = decode_audio(streamed_flac(seconds), "prompt audio")
    assert rate == RATE
    np.testing.assert_array_equal(streamed, whole)


@pytest.mark.parametrize("form", ["flac", "streamed flac"])
def test_sample_limit_is_inclusive(monkeypatch, form):
    content = streamed_flac(20) if form == "streamed flac" else encoded(form, sound(20))
    monkeypatch.setattr("voxcpm_runtime.audio.reading.MAX_RECORDING_SAMPLES", 20 * RATE)
    assert len(decode_audio(content, "prompt audio", max_seconds=20)[0]) == 20 * RATE
    with pytest.raises(InputError, match=r"prompt audio: longer than 19\.9 s, the maximum"):
        decode_audio(content, "prompt audio", max_seconds=19.9)
    monkeypatch.setattr("voxcpm_runtime.audio.reading.MAX_RECORDING_SAMPLES", 20 * RATE - 1)
    with pytest.raises(InputError, match=r"longer than 19\.9999 s, the maximum for a recording"):
        decode_audio(content, "prompt audio")


def test_header_with_a_negative_offset_prints_no_traceback(capfd):
    content = (Path(__file__).parents[2] / "robustness" / "corpus" / "recording.seek.aiff").read_bytes()
    with pytest.raises(InputError, match="cannot be read"):
        decode_audio(content, "prompt audio")
    assert capfd.readouterr().err == ""


def test_silent_prompt_is_rejected_with_its_level(tts):
    for level, told in ((0, r" \(peak 0, minimum 0.001\)"), (0.5, "")):
        with pytest.raises(InputError, match=f"prompt audio: expected speech, but it is silent{told}"):
            tts.plan("hi", (np.full(2000, level, np.float32), 1000), "so")


def test_resampling_preserves_a_sine():
    rate = 44100
    audio = read_audio((sine(rate), rate), RATE)
    assert audio.dtype == np.float32
    assert abs(len(audio) - RATE // 2) <= 1
    # The filter rings at the ends.
    np.testing.assert_allclose(audio[400:-400], sine(RATE)[: len(audio)][400:-400], atol=2e-3)


def test_path_bytes_file_and_array_are_equivalent(tmp_path):
    path = tmp_path / "prompt.wav"
    stereo = np.stack([sine(RATE), 0.2 * sine(RATE)], axis=1)
    soundfile.write(path, stereo, RATE, subtype="FLOAT")
    mean = (stereo[:, 0] + stereo[:, 1]) / 2
    content = path.read_bytes()
    in_memory = (content, bytearray(content), memoryview(content), io.BytesIO(content))
    for source in (path, str(path), *in_memory, (stereo, RATE)):
        np.testing.assert_allclose(read_audio(source, RATE), mean, atol=1e-7)


# uint8 as in an 8-bit WAV file: silence is 128.
@pytest.mark.parametrize(
    ("dtype", "zero", "one"),
    [("uint8", 128, 128), ("int16", 0, 2**15), ("int32", 0, 2**31), ("float64", 0, 1)],
)
def test_samples_are_scaled_to_one(dtype, zero, one):
    samples = (zero + np.array([0.5, -0.25, 0.0]) * one).astype(dtype)
    np.testing.assert_allclose(read_audio((samples, RATE), RATE), [0.5, -0.25, 0.0], atol=1e-6)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nowhere.wav", "prompt audio nowhere.wav: no such file"),
        (b"this is no audio", "expected an audio file"),
        ((np.zeros((0, 2), np.float32), RATE), "it is empty"),
        ((np.array([0.0, np.nan], np.float32), RATE), "NaN or infinite"),
        ((np.zeros(99, np.float32), RATE), "0.006 s long, but the minimum is one patch, 0.006 s"),
        ((np.zeros(500, np.int64), RATE), "got int64"),
        ((np.zeros((2, 500), np.float32), RATE), r"\(2, 500\); transpose"),
        ((np.full(500, 3e4, np.float32), RATE), "peak of 30000; scale"),
        (encoded("float", np.full((9, 2), 3e38, np.float32)), "NaN or infinite"),
        ((np.zeros(500, np.float32), 10**9), "from 1 to 384000, got 1000000000"),
        (None, "got None"),
        (encoded("wav", np.zeros((RATE, 9), np.float32)), "at most 8 channels, got 16000 Hz and 9"),
        (io.StringIO("text"), 'mode "rb"'),
    ],
)
def test_unusable_audio_is_a_one_line_error(source, message):
    with pytest.raises(InputError, match=message):
        read_audio(source, RATE, min_samples=100, what="prompt audio")


PHONE_RATE = 48_000
PHONE_TONE = (np.sin(np.arange(PHONE_RATE) * 2 * np.pi * 440 / PHONE_RATE) / 2).astype(np.float32)
PHONE_FORMATS = [
    ("ipod", "aac"),
    ("ipod", "alac"),
    ("mov", "aac"),
    ("webm", "libopus"),
    ("caf", "alac"),
    ("adts", "aac"),
]


def recorded(container, codec):
    file = io.BytesIO()
    with av.open(file, "w", format=container) as output:
        stream = output.add_stream(codec, rate=PHONE_RATE)
        stream.layout = "mono"
        frame = av.AudioFrame.from_ndarray(PHONE_TONE[None], "fltp", "mono")
        frame.sample_rate = PHONE_RATE
        convert = av.AudioResampler(
            format=stream.format, rate=PHONE_RATE, frame_size=stream.codec_context.frame_size or 4096
        )
        for part in [*convert.resample(frame), *convert.resample(None)]:
            output.mux(stream.encode(part))
        output.mux(stream.encode(None))
    return file.getvalue()


@pytest.mark.parametrize(("container", "codec"), PHONE_FORMATS)
def test_recording_of_a_phone_is_read(container, codec):
    audio, rate = decode_audio(recorded(container, codec), "prompt audio")
    assert rate == PHONE_RATE
    assert len(audio) == pytest.approx(len(PHONE_TONE), abs=3000)
    spectrum = np.abs(np.fft.rfft(audio[8000:40_000]))
    assert spectrum.argmax() * PHONE_RATE / 32_000 == pytest.approx(440, abs=2)


def test_a_phone_recording_that_cannot_be_read_is_one_line(monkeypatch):
    content = recorded("ipod", "aac")
    with pytest.raises(InputError, match=r"longer than 0\.5 s"):
        decode_audio(content, "me.m4a", max_seconds=0.5)
    with pytest.raises(InputError, match="cannot be read"):
        decode_audio(content[:200], "me.m4a")
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(InputError, match=r"me\.m4a: .*use WAV, FLAC.*voxcpm-coreml\[serve\]"):
        decode_audio(content, "me.m4a")


def test_macs_own_decoder_is_used_there(monkeypatch):

    def copied(command, **_):
        Path(command[-1]).write_bytes(Path(command[-2]).read_bytes())
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(phone_formats, "sys", SimpleNamespace(platform="darwin"))
    monkeypatch.setattr(phone_formats, "_AFCONVERT", "/bin/cp")
    monkeypatch.setattr(phone_formats.subprocess, "run", copied)
    assert phone_formats.decode_with_system(b"....ftyp") == b"....ftyp"
