"""Recordings as phones make them: m4a (AAC, ALAC), mov, webm, caf, AAC."""

import io
import sys
from types import SimpleNamespace

import av
import numpy as np
import pytest

from voxcpm_constants.errors import InputError
from voxcpm_runtime.audio import phone_formats
from voxcpm_runtime.audio.reading import decode_audio

RATE = 48_000
TONE = (np.sin(np.arange(RATE) * 2 * np.pi * 440 / RATE) / 2).astype(np.float32)
FORMATS = [
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
        stream = output.add_stream(codec, rate=RATE)
        stream.layout = "mono"
        frame = av.AudioFrame.from_ndarray(TONE[None], "fltp", "mono")
        frame.sample_rate = RATE
        convert = av.AudioResampler(
            format=stream.format, rate=RATE, frame_size=stream.codec_context.frame_size or 4096
        )
        for part in [*convert.resample(frame), *convert.resample(None)]:
            output.mux(stream.encode(part))
        output.mux(stream.encode(None))
    return file.getvalue()


@pytest.mark.parametrize(("container", "codec"), FORMATS)
def test_recording_of_a_phone_is_read(container, codec):
    audio, rate = decode_audio(recorded(container, codec), "prompt audio")
    assert rate == RATE
    assert len(audio) == pytest.approx(len(TONE), abs=3000)
    spectrum = np.abs(np.fft.rfft(audio[8000:40_000]))
    assert spectrum.argmax() * RATE / 32_000 == pytest.approx(440, abs=2)


def test_without_a_decoder_one_line_names_formats_and_the_extra(monkeypatch):
    content = recorded("ipod", "aac")
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(InputError, match=r"me\.m4a: .*use WAV, FLAC.*voxcpm-coreml\[serve\]"):
        decode_audio(content, "me.m4a")


def test_length_and_damage_are_checked():
    content = recorded("ipod", "aac")
    with pytest.raises(InputError, match=r"longer than 0\.5 s"):
        decode_audio(content, "me.m4a", max_seconds=0.5)
    with pytest.raises(InputError, match="cannot be read"):
        decode_audio(content[:200], "me.m4a")


def test_macs_own_decoder_is_used_there(monkeypatch):
    monkeypatch.setattr(phone_formats, "sys", SimpleNamespace(platform="darwin"))
    monkeypatch.setattr(phone_formats, "_AFCONVERT", "/bin/cp")
    monkeypatch.setattr(phone_formats.subprocess, "run", lambda command, **_: _copied(command))
    assert phone_formats.decode_with_system(b"....ftyp") == b"....ftyp"


def _copied(command):
    phone_formats.Path(command[-1]).write_bytes(phone_formats.Path(command[-2]).read_bytes())
    return SimpleNamespace(returncode=0)
