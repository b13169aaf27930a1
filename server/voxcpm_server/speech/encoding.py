"""Streaming encoders of the protocol's formats: time stretching, resampling, then a codec.

They use FFmpeg's libraries (PyAV), whose resampler and `atempo` filter give the same samples however a stream is cut.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from fractions import Fraction
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import av
import numpy as np

from voxcpm_runtime import Audio, pcm16
from voxcpm_server.errors import ApiError

MIN_RATE, MAX_RATE = 8_000, 48_000
PCM_RATE = 24_000
"""Default rate of raw samples in Hz, as OpenAI's clients assume."""
# A length that is not known yet; players read to the end.
_UNKNOWN = 0xFFFF_FFFF
_HEADER_BYTES = 36
# FFmpeg's 16-bit samples have 32768 steps to 1, the command line's 32767.
_PEAK_OF_INTEGERS = np.float32(32767 / 32768)
# `atempo` takes 0.5 to 100, so slower speech passes through two filters.
_MIN_TEMPO = 0.5


class Format(NamedTuple):
    """A response format: FFmpeg's container and codec (none for plain samples), and the codec's rates."""

    content_type: str
    container: str = ""
    codec: str = ""
    rates: tuple[int, ...] = ()
    """Sample rates in Hz that the codec takes; empty for any."""
    bit_rate: int = 0
    """Bits a second; 0 for lossless formats."""
    options: Mapping[str, str] = MappingProxyType({})


_MPEG_RATES = (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000)
FORMATS = {
    # Without the Xing frame: the length is unknown when it would be sent.
    "mp3": Format(
        "audio/mpeg", "mp3", "libmp3lame", _MPEG_RATES, 96_000, {"write_xing": "0", "id3v2_version": "0"}
    ),
    # Pages of 20,000 µs; the default is one second.
    "opus": Format(
        "audio/ogg", "ogg", "libopus", (8000, 12000, 16000, 24000, 48000), 64_000, {"page_duration": "20000"}
    ),
    "aac": Format("audio/aac", "adts", "aac", _MPEG_RATES, 96_000),
    "flac": Format("audio/flac", "flac", "flac"),
    "wav": Format("audio/wav"),
    "pcm": Format("audio/pcm"),
}
"""The response formats of OpenAI's speech API by name."""


class Encoder:
    """Encodes one speech in pieces: `header`, then `encode` for each piece, then `finish`.

    name: of `FORMATS`. voice_rate: Hz of the speech. wanted_rate: requested Hz, or None. speed: how many times faster
    it is played, at the same pitch.

    Raises ApiError (400) for a rate that is out of bounds, or that the format does not have.
    """

    def __init__(
        self, name: str, voice_rate: int, wanted_rate: int | None = None, speed: float = 1.0
    ) -> None:
        self.format = FORMATS[name]
        self._name = name
        self._voice_rate = voice_rate
        self.sample_rate = _output_rate(name, voice_rate, wanted_rate)
        """Output rate in Hz."""
        self.samples = 0
        """Output samples so far."""
        self.speed = speed
        """How many times faster the speech is played."""
        self._tempo = None if speed == 1.0 else _Tempo(voice_rate, speed)
        self._codec = _Codec(self.format, self.sample_rate) if self.format.codec else None
        sample_format = self._codec.sample_format if self._codec else "flt"
        self._resampler = av.AudioResampler(sample_format, "mono", self.sample_rate)
        self._peak = _PEAK_OF_INTEGERS if sample_format == "s16" else np.float32(1)
        self._resampled = 0

    @property
    def seconds(self) -> float:
        """Playing time so far."""
        return round(self.samples / self.sample_rate, 3)

    def header(self, samples: int | None = None) -> bytes:
        """The bytes before the first piece. samples: number of output samples, if known already."""
        if self._name != "wav":
            return b""
        size = _UNKNOWN if samples is None else 2 * samples
        whole = _UNKNOWN if samples is None else size + _HEADER_BYTES
        rate = self.sample_rate
        form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, rate, 2 * rate, 2, 16)
        return struct.pack("<4sI4s", b"RIFF", whole, b"WAVE") + form + struct.pack("<4sI", b"data", size)

    def encode(self, audio: Audio) -> bytes:
        """The bytes of a piece (samples,); may be empty, as codecs collect samples first."""
        pieces = [audio] if self._tempo is None else self._tempo.stretched(audio)
        return b"".join(map(self._encoded, pieces))

    def finish(self) -> bytes:
        """The remaining bytes."""
        last = b"" if self._tempo is None else b"".join(map(self._encoded, self._tempo.stretched(None)))
        last += self._coded(self._resampler.resample(None) if self._resampled else [])
        return last if self._codec is None else last + self._codec.finish()

    def _encoded(self, audio: Audio) -> bytes:
        if self._codec is None and self._voice_rate == self.sample_rate:
            # Unchanged: the same samples as the command line writes.
            self.samples += len(audio)
            return pcm16(audio).astype("<i2").tobytes()
        if self._codec is not None:
            audio = np.clip(audio, -1.0, 1.0) * self._peak
        frame = _frame(audio, self._voice_rate, self._resampled)
        self._resampled += len(audio)
        return self._coded(self._resampler.resample(frame))

    def _coded(self, frames: list[Any]) -> bytes:
        self.samples += sum(frame.samples for frame in frames)
        if self._codec is not None:
            return self._codec.coded(frames)
        return b"".join(pcm16(frame.to_ndarray().ravel()).astype("<i2").tobytes() for frame in frames)


class _Codec:
    """A codec and its container, which write into memory."""

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
        """Called by FFmpeg, which does not seek, as there is no method for it."""
        self._written += data
        return len(data)

    def coded(self, frames: list[Any]) -> bytes:
        for frame in frames:
            for packet in self._stream.encode(frame):
                self._container.mux(packet)
        return self._taken()

    def finish(self) -> bytes:
        last = self.coded([None])
        self._container.close()
        return last + self._taken()

    def _taken(self) -> bytes:
        taken = bytes(self._written)
        self._written.clear()
        return taken


class _Tempo:
    """Speech played faster or slower at the same pitch, by FFmpeg's `atempo` (overlap-add of similar waveforms)."""

    def __init__(self, sample_rate: int, speed: float) -> None:
        self._rate = sample_rate
        self._pushed = 0
        # Kept: it owns the filters.
        self._graph = graph = av.filter.Graph()
        self._source: Any = graph.add_abuffer(
            sample_rate=sample_rate, format="flt", layout="mono", time_base=Fraction(1, sample_rate)
        )
        tempos = []
        while speed < _MIN_TEMPO:
            tempos.append(_MIN_TEMPO)
            speed /= _MIN_TEMPO
        last: Any = self._source
        for name, arguments in (
            *(("atempo", f"{tempo:.6f}") for tempo in (*tempos, speed)),
            ("aformat", f"sample_fmts=flt:channel_layouts=mono:sample_rates={sample_rate}"),
            ("abuffersink", None),
        ):
            made: Any = graph.add(name, arguments)
            last.link_to(made)
            last = made
        self._sink = last
        graph.configure()

    def stretched(self, audio: Audio | None) -> Iterator[Audio]:
        """What a piece gives; None for the rest."""
        if audio is not None:
            self._source.push(_frame(audio, self._rate, self._pushed))
            self._pushed += len(audio)
        elif self._pushed:
            self._source.push(None)
        while self._pushed:
            try:
                frame = self._sink.pull()
            except (av.error.BlockingIOError, av.error.EOFError):
                return
            yield frame.to_ndarray().ravel()


def _frame(audio: Audio, rate: int, position: int) -> Any:
    frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(audio[None], np.float32), "flt", "mono")
    frame.sample_rate = rate
    frame.pts = position
    frame.time_base = Fraction(1, rate)
    return frame


def _output_rate(name: str, voice_rate: int, wanted: int | None) -> int:
    rates = FORMATS[name].rates
    if wanted is not None:
        if wanted in rates or (not rates and MIN_RATE <= wanted <= MAX_RATE):
            return wanted
        expected = (
            f"{name} has {', '.join(map(str, rates))} Hz"
            if rates
            else f"expected {MIN_RATE} to {MAX_RATE} Hz"
        )
        raise ApiError(400, f"sample_rate: {expected}, got {wanted}", param="sample_rate")
    if name == "pcm":
        return PCM_RATE
    if not rates or voice_rate in rates:
        return voice_rate
    return min((rate for rate in rates if rate > voice_rate), default=rates[-1])
