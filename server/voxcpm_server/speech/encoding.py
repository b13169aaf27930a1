"""Streaming encoders of the response formats: resampling, then a codec.

They use FFmpeg's libraries (PyAV), whose filters give the same samples however a stream is chunked.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import av
import numpy as np

from voxcpm_runtime import Word
from voxcpm_runtime.audio.pcm import Audio, pcm16
from voxcpm_server.errors import ApiError

MIN_RATE, MAX_RATE = 8_000, 48_000
PCM_RATE = 24_000  # default rate of raw samples in Hz, as OpenAI's clients assume
# The size of a stream of unknown length; players read to the end.
_UNKNOWN = 0xFFFF_FFFF
_HEADER_BYTES = 36
_FLAC_LENGTH_END = 26  # offset in a file after the number of samples
# FFmpeg scales 16-bit samples by 32768, the command line by 32767.
_PEAK_OF_INTEGERS = np.float32(32767 / 32768)


class Format(NamedTuple):
    """A response format: FFmpeg's container and codec (empty for raw samples), and the codec's rates."""

    content_type: str
    container: str = ""
    codec: str = ""
    rates: tuple[int, ...] = ()  # sample rates in Hz that the codec supports; empty for any
    bit_rate: int = 0  # bits per second; 0 for lossless formats
    options: Mapping[str, str] = MappingProxyType({})
    delay: int = 0  # samples that decoders play before the first one


_MPEG_RATES = (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000)
_OPUS_RATES = (8000, 12000, 16000, 24000, 48000)
# No Xing frame: the length is still unknown when it would be sent.
_MP3_OPTIONS = {"write_xing": "0", "id3v2_version": "0"}
FORMATS = {
    "mp3": Format("audio/mpeg", "mp3", "libmp3lame", _MPEG_RATES, 96_000, _MP3_OPTIONS, delay=1105),
    # Pages of 20,000 µs; the default is one second.
    "opus": Format("audio/ogg", "ogg", "libopus", _OPUS_RATES, 64_000, {"page_duration": "20000"}),
    "aac": Format("audio/aac", "adts", "aac", _MPEG_RATES, 96_000, delay=1024),
    "flac": Format("audio/flac", "flac", "flac"),
    "wav": Format("audio/wav"),
    "pcm": Format("audio/pcm"),
}
"""The response formats of OpenAI's speech API by name."""
TELEPHONE_FORMATS = {
    "ulaw": Format("audio/basic", "mulaw", "pcm_mulaw", (8000,)),
    "alaw": Format("audio/x-alaw-basic", "alaw", "pcm_alaw", (8000,)),
}
"""ElevenLabs' formats for telephony (G.711), in addition."""
_ALL_FORMATS = FORMATS | TELEPHONE_FORMATS


class Encoder:
    """Encodes one speech in pieces: `header`, then `encode` for each piece, then `finish`.

    name: a key of `FORMATS` or `TELEPHONE_FORMATS`. voice_rate: input rate in Hz. rate: output rate in Hz; None for
    the format's default. Raises ApiError (400) for a rate that the format does not support.
    """

    def __init__(self, name: str, voice_rate: int, rate: int | None = None) -> None:
        self.format = _ALL_FORMATS[name]
        self._name = name
        self.sample_rate = rate = _output_rate(name, voice_rate, rate)
        self.samples = 0
        self._codec = _Codec(self.format, rate) if self.format.codec else None
        sample_format = self._codec.sample_format if self._codec else "flt"
        self._peak = _PEAK_OF_INTEGERS if sample_format == "s16" else np.float32(1)
        self._resampler = av.AudioResampler(sample_format, "mono", rate)
        self._voice_rate = voice_rate
        # Raw samples at the voice's rate equal those that the command line writes.
        self._is_plain = self._codec is None and voice_rate == rate

    @property
    def seconds(self) -> float:
        """Playing time so far."""
        return round(self.samples / self.sample_rate, 3)

    def heard(self, words: Sequence[Word]) -> list[Word]:
        """The words with their times in the decoded audio."""
        delay = self.format.delay / self.sample_rate
        return [
            word._replace(start=round(word.start + delay, 3), end=round(word.end + delay, 3))
            for word in words
        ]

    def header(self, samples: int | None = None) -> bytes:
        """The bytes before the first piece. samples: number of output samples, if already known."""
        if self._name != "wav":
            return b""
        size = _UNKNOWN if samples is None else 2 * samples
        whole = _UNKNOWN if samples is None else size + _HEADER_BYTES
        rate = self.sample_rate
        form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, rate, 2 * rate, 2, 16)
        return struct.pack("<4sI4s", b"RIFF", whole, b"WAVE") + form + struct.pack("<4sI", b"data", size)

    def completed(self, start: bytes) -> bytes:
        """The first bytes of a complete speech, with its length where the format has it there: FLAC's STREAMINFO."""
        if self._name != "flac" or not start.startswith(b"fLaC") or len(start) <= _FLAC_LENGTH_END:
            return start
        # 36 bits, of which the highest four share a byte.
        length = (start[_FLAC_LENGTH_END - 5] >> 4 << 36 | self.samples).to_bytes(5, "big")
        return start[: _FLAC_LENGTH_END - 5] + length + start[_FLAC_LENGTH_END:]

    def encode(self, audio: Audio) -> bytes:
        """Encode a piece (samples,). The result may be empty, as codecs buffer samples."""
        if self._is_plain:
            self.samples += len(audio)
            return _raw(audio)
        if self._codec is not None:
            audio = np.clip(audio, -1.0, 1.0) * self._peak
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(audio[None], np.float32), "flt", "mono")
        frame.sample_rate = self._voice_rate
        return self._resampled(frame)

    def finish(self) -> bytes:
        """The remaining bytes."""
        last = self._resampled(None)
        return last if self._codec is None else last + self._codec.finish()

    def _resampled(self, frame: av.AudioFrame | None) -> bytes:
        """The bytes of a piece at the output rate; None flushes."""
        frames: list[Any] = self._resampler.resample(frame)
        self.samples += sum(each.samples for each in frames)
        if self._codec is not None:
            return b"".join(map(self._codec.coded, frames))
        return b"".join(_raw(each.to_ndarray().ravel()) for each in frames)


def _raw(audio: Audio) -> bytes:
    return pcm16(audio).astype("<i2").tobytes()


class _Codec:
    """A codec and its container, muxed into memory."""

    def __init__(self, form: Format, sample_rate: int) -> None:
        self._written = bytearray()
        options = {**form.options, "flush_packets": "1"}
        self._container: Any = av.open(self, "w", format=form.container, options=options)
        self._stream = cast("Any", self._container.add_stream(form.codec, rate=sample_rate))
        self._stream.layout = "mono"
        if form.bit_rate:
            self._stream.bit_rate = form.bit_rate
        self.sample_format = self._stream.format.name

    def write(self, data: bytes) -> int:
        """Called by FFmpeg, which cannot seek without a `seek` method."""
        self._written += data
        return len(data)

    def coded(self, frame: Any) -> bytes:
        for packet in self._stream.encode(frame):
            self._container.mux(packet)
        taken = bytes(self._written)
        self._written.clear()
        return taken

    def finish(self) -> bytes:
        last = self.coded(None)
        self._container.close()
        return last + bytes(self._written)


def _output_rate(name: str, voice_rate: int, requested: int | None) -> int:
    rates = _ALL_FORMATS[name].rates
    if requested is not None:
        if requested in rates or (not rates and MIN_RATE <= requested <= MAX_RATE):
            return requested
        listed = ", ".join(map(str, rates))
        expected = f"{name} supports {listed} Hz" if rates else f"expected {MIN_RATE} to {MAX_RATE} Hz"
        raise ApiError(400, f"sample_rate: {expected}, got {requested}", param="sample_rate")
    if name == "pcm":
        return PCM_RATE
    if not rates or voice_rate in rates:
        return voice_rate
    return min((rate for rate in rates if rate > voice_rate), default=rates[-1])
