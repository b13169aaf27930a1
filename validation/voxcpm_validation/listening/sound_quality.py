"""How speech sounds: two predictors of listeners' ratings, pitch, and a vocoder's buzz.

A word error rate does not hear any of these: the recogniser understands a voice without pitch. The trained networks are
in the wheels `distillmos` (arXiv 2502.05356), `speechmos` (DNSMOS, arXiv 2110.01763) and `swift-f0`.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from voxcpm_constants.errors import MissingExtraError
from voxcpm_conversion.gate import flatness
from voxcpm_runtime.audio.reading import resample

# Before swift_f0, which also imports ONNX Runtime: this disables its telemetry.
from voxcpm_runtime.backends.portable import onnx_runtime
from voxcpm_runtime.backends.step_function import Floats
from voxcpm_validation.listening.speaker_similarity import package_folder

INSTALL = "pip install --no-deps distillmos==0.9.1 xls-r-sqa==0.1.0 speechmos==0.0.1.1 swift-f0==0.3.0"
_RATE = 16000
_MIN_HZ, _MAX_HZ = 60.0, 500.0
# DNSMOS rates windows of this length, a second apart; its authors fit its raw overall score to ratings.
_WINDOW = round(9.01 * _RATE)
_OVERALL = (-0.06766283, 1.11546468, 0.04602535)
# The comb: a decoder that has lost the pitch draws straight harmonics at multiples of its frame rates, the lowest of
# which is 50 Hz. Frames long enough to resolve them, and the band in which the ear hears them most.
_COMB_SECONDS, _COMB_HZ, _COMB_WIDTH = 0.34, 50.0, 6.0
_COMB_BAND = (1000.0, 5000.0)
_CENTS = 50


class SoundQuality(NamedTuple):
    """Measures of one utterance."""

    mos: float
    """Mean opinion score that DistillMOS predicts, 1 to 5."""
    dnsmos: float
    """Overall quality that DNSMOS predicts, 1 to 5."""
    pitch: float
    """Median fundamental frequency of the voiced frames, in Hz; NaN if there are none."""
    comb: float
    """See `comb_share`."""
    flatness: float
    """Spectral flatness of noisy frames (`voxcpm_conversion.gate.flatness`): low if sibilants are metallic."""
    sibilance: float
    """Power from 4 to 8 kHz over all of it, in dB."""


class PitchAgreement(NamedTuple):
    """Pitch of a copy compared with the original's, over the frames that are voiced in both."""

    correlation: float
    """Pearson correlation of the fundamental frequencies."""
    within_50_cents: float
    """Share of frames less than half a semitone apart."""


class SoundJudge:
    """The trained networks. Raises MissingExtraError if one is not installed."""

    def __init__(self) -> None:
        from voxcpm_validation.upstream import install_stubs

        # Its module imports torchaudio, but only reading files uses it.
        install_stubs()
        try:
            from distillmos import ConvTransformerSQAModel  # type: ignore[import-untyped]
            from swift_f0 import SwiftF0
        except ImportError as error:
            raise MissingExtraError(f"sound quality needs trained networks ({error}): {INSTALL}") from None
        options = onnx_runtime.ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._dnsmos = onnx_runtime.ort.InferenceSession(
            str(package_folder("speechmos", "sound quality", INSTALL) / "dnsmos_models/sig_bak_ovr.onnx"),
            options,
            providers=["CPUExecutionProvider"],
        )
        with contextlib.redirect_stdout(io.StringIO()):  # It prints the path of its weights
            self._mos = ConvTransformerSQAModel().eval()
        self._pitch = SwiftF0(threads=1)

    def quality(self, audio: Floats, sample_rate: int) -> SoundQuality:
        """Measures of an utterance (samples,). sample_rate: in Hz."""
        pitch = self.pitch(audio, sample_rate)
        voiced = pitch[pitch > 0]
        return SoundQuality(
            mos=self._distill_mos(audio, sample_rate),
            dnsmos=self._overall(resample(audio, sample_rate, _RATE)),
            pitch=float(np.median(voiced)) if len(voiced) else float("nan"),
            comb=comb_share(audio, sample_rate),
            flatness=flatness(audio, sample_rate),
            sibilance=sibilance(audio, sample_rate),
        )

    def pitch(self, audio: Floats, sample_rate: int) -> Floats:
        """Fundamental frequency of each frame of 16 ms (frames,) in Hz; 0 where it is not voiced."""
        found = self._pitch.detect(resample(audio, sample_rate, _RATE), _RATE, _MIN_HZ, _MAX_HZ)
        return np.where(found.confidence >= 0.5, found.pitch_hz, 0).astype(np.float32)

    def agreement(self, original: Floats, copy: Floats, sample_rate: int) -> PitchAgreement:
        """Pitch of a copy compared with the original's; both (samples,)."""
        tracks = [self.pitch(audio, sample_rate) for audio in (original, copy)]
        frames = min(map(len, tracks))
        a, b = (track[:frames] for track in tracks)
        voiced = (a > 0) & (b > 0)
        if voiced.sum() < 2:
            return PitchAgreement(0.0, 0.0)
        cents = 1200 * np.abs(np.log2(b[voiced] / a[voiced]))
        with np.errstate(invalid="ignore"):
            correlation = np.nan_to_num(np.corrcoef(a[voiced], b[voiced])[0, 1])
        return PitchAgreement(float(correlation), float(np.mean(cents < _CENTS)))

    @torch.inference_mode()
    def _distill_mos(self, audio: Floats, sample_rate: int) -> float:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return float(self._mos(torch.from_numpy(resample(audio, sample_rate, _RATE))[None]))

    def _overall(self, audio: Floats) -> float:
        repeated = np.resize(audio, max(len(audio), _WINDOW))
        starts = range(0, len(repeated) - _WINDOW + 1, _RATE)
        windows = [repeated[np.newaxis, start : start + _WINDOW].astype(np.float32) for start in starts]
        raw = [float(self._dnsmos.run(None, {"input_1": window})[0][0, 2]) for window in windows]
        return float(np.mean(np.polyval(_OVERALL, raw)))


def sibilance(audio: Floats, sample_rate: int) -> float:
    """Power from 4 to 8 kHz over that of all of the audio (samples,), in dB; -100 for silence."""
    power, hz = np.square(np.abs(np.fft.rfft(audio))), np.fft.rfftfreq(len(audio), 1 / sample_rate)
    share = power[(hz >= 4000) & (hz < 8000)].sum() / (power.sum() + 1e-20)
    return float(10 * np.log10(share + 1e-10))


def envelope_error(original: Floats, copy: Floats, sample_rate: int) -> float:
    """Mean difference in dB of the levels in three octaves from 1 to 8 kHz, every 5 ms: what tells consonants apart.

    Both (samples,), of equal length. What is 35 dB below the mean level of the original does not count.
    """
    size = round(0.02 * sample_rate)
    hz = np.fft.rfftfreq(size, 1 / sample_rate)
    powers = [_power_spectra(audio, size) for audio in (original, copy)]
    level = powers[0].mean(1)
    heard = level > level.mean() * 10**-3.5
    differences = [
        np.diff(
            [10 * np.log10(p[heard][:, (hz >= low) & (hz < 2 * low)].mean(1) + 1e-10) for p in powers], axis=0
        )
        for low in (1000, 2000, 4000)
    ]
    return float(np.abs(differences).mean())


def comb_share(audio: Floats, sample_rate: int) -> float:
    """Share of the power from 1 to 5 kHz that is within 6 Hz of multiples of 50 Hz.

    By chance 0.24; about that in speech, more than a half in a copy without pitch. audio: (samples,).
    """
    size = round(_COMB_SECONDS * sample_rate)
    power = _power_spectra(np.pad(audio, (0, max(0, size - len(audio)))), size).sum(0)
    hz = np.fft.rfftfreq(size, 1 / sample_rate)
    band = (hz >= _COMB_BAND[0]) & (hz <= _COMB_BAND[1])
    near = np.abs(hz - np.round(hz / _COMB_HZ) * _COMB_HZ) <= _COMB_WIDTH
    return float(power[band & near].sum() / max(float(power[band].sum()), 1e-20))


def _power_spectra(audio: Floats, size: int) -> npt.NDArray[np.float64]:
    """Power (frames, size // 2 + 1) of frames that overlap by three quarters."""
    frames = np.lib.stride_tricks.sliding_window_view(audio, size)[:: size // 4]
    return np.square(np.abs(np.fft.rfft(frames * np.hanning(size))))
