"""Similarity of two voices: the cosine of speaker embeddings (generalised end-to-end loss, Wan et al. 2018).

The trained network is in the wheel `Resemblyzer` (Apache-2.0). Its code is not used: for one spectrogram it needs
librosa with numba, and a voice activity detector that must be compiled.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import torch

from voxcpm_constants.errors import MissingExtraError
from voxcpm_runtime.audio.reading import resample
from voxcpm_runtime.backends.step_function import Floats

_INSTALL = "pip install --no-deps Resemblyzer==0.1.4"
_RATE = 16000
_WINDOW, _HOP, _MELS = 400, 160, 40
_PARTIAL_FRAMES, _PARTIAL_STEP = 160, 77
_LEVEL_DBFS = -30.0
_WIDTH = 256


class SpeakerEncoder(torch.nn.Module):
    """The network from audio to speaker embedding. Raises MissingExtraError if Resemblyzer is not installed."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = torch.nn.LSTM(_MELS, _WIDTH, num_layers=3, batch_first=True)
        self.linear = torch.nn.Linear(_WIDTH, _WIDTH)
        weights = package_folder("resemblyzer", "speaker similarity", _INSTALL) / "pretrained.pt"
        state = torch.load(weights, map_location="cpu", weights_only=True)["model_state"]
        self.load_state_dict({k: v for k, v in state.items() if not k.startswith("similarity_")})
        self.eval()

    @torch.inference_mode()
    def embed(self, audio: Floats, sample_rate: int) -> Floats:
        """Unit-length speaker embedding (256,) of audio (samples,).

        The mean over windows of 1.6 s that overlap by half.
        """
        mel = _mel_power(_normalize_level(resample(audio, sample_rate, _RATE)))
        mel = np.pad(mel, ((0, max(0, _PARTIAL_FRAMES - len(mel))), (0, 0)))
        starts = range(0, len(mel) - _PARTIAL_FRAMES + 1, _PARTIAL_STEP)
        partials = torch.from_numpy(np.stack([mel[s : s + _PARTIAL_FRAMES] for s in starts]))
        _, (hidden, _) = self.lstm(partials)
        embeddings = torch.nn.functional.normalize(torch.relu(self.linear(hidden[-1])), dim=1)
        return torch.nn.functional.normalize(embeddings.mean(0), dim=0).numpy()


def package_folder(name: str, purpose: str, install: str) -> Path:
    """The folder of a package that has a trained network. Raises MissingExtraError if it is not installed."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise MissingExtraError(f"{purpose} needs the trained network of {name}: {install}")
    return Path(spec.origin).parent


def _normalize_level(audio: Floats) -> Floats:
    """Scale audio to the level that the network was trained with."""
    rms = float(np.sqrt(np.mean(audio**2))) or 1.0
    return audio * np.float32(10 ** (_LEVEL_DBFS / 20) / rms)


def _mel_power(audio: Floats) -> Floats:
    """Mel power spectrogram (frames, mels) of audio (samples,)."""
    from transformers.audio_utils import mel_filter_bank, spectrogram, window_function

    filters = mel_filter_bank(
        _WINDOW // 2 + 1, _MELS, 0.0, _RATE / 2, _RATE, norm="slaney", mel_scale="slaney"
    )
    mel = spectrogram(
        audio,
        window_function(_WINDOW),
        frame_length=_WINDOW,
        hop_length=_HOP,
        mel_filters=filters,
        power=2.0,
        pad_mode="constant",
    )
    return np.ascontiguousarray(mel.T, np.float32)
