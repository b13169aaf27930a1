"""Batched Whisper tiny.en on a GPU: 256 utterances in less than a second."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from voxcpm_training.whisper_weights import SUPPRESSED, SUPPRESSED_FIRST, expand

Audio = npt.NDArray[np.int16]

# Tokens of Whisper's English models. All from START on are special or timestamps, which are never predicted here.
_END, _START, _NO_TIMESTAMPS = 50256, 50257, 50362
_PROMPT = (_START, _NO_TIMESTAMPS)
_MAX_TOKENS = 110
_WHISPER_RATE, _WINDOW = 16_000, 30 * 16_000
# Utterances per encoder batch, which limits activation memory.
_ENCODED_AT_ONCE = 64
# Checking whether all transcripts have ended synchronises with the device, so not at every step.
_STEPS_BETWEEN_ENDS = 8


class Recogniser:
    """Whisper tiny.en with batched greedy decoding; fp16 on CUDA, fp32 on the CPU.

    weights: the output of `whisper_weights`. tokenizer: Whisper's tokenizer.json.
    """

    def __init__(self, weights: Path, tokenizer: Path, device: torch.device) -> None:
        from tokenizers import Tokenizer
        from transformers import WhisperConfig, WhisperForConditionalGeneration
        from transformers.audio_utils import mel_filter_bank

        self.device = device
        self._dtype = torch.float16 if device.type == "cuda" else torch.float32
        self._tokenizer = Tokenizer.from_file(str(tokenizer))
        with np.load(weights) as file:
            arrays = dict(file)
        never, never_first = (torch.from_numpy(arrays.pop(n)).long() for n in (SUPPRESSED, SUPPRESSED_FIRST))
        state = {name: torch.from_numpy(value) for name, value in expand(arrays).items()}
        state["proj_out.weight"] = state["model.decoder.embed_tokens.weight"]
        config = WhisperConfig(
            vocab_size=51864, num_mel_bins=80, d_model=384, encoder_layers=4, decoder_layers=4,
            encoder_attention_heads=6, decoder_attention_heads=6, encoder_ffn_dim=1536, decoder_ffn_dim=1536,
            max_source_positions=1500, max_target_positions=448, bos_token_id=_END, eos_token_id=_END,
            pad_token_id=_END, decoder_start_token_id=_START, attn_implementation="sdpa",
        )  # fmt: skip
        whisper = WhisperForConditionalGeneration(config)
        whisper.load_state_dict(state)
        self._whisper = whisper.eval().requires_grad_(requires_grad=False).to(device, self._dtype)
        self._heads: int = config.decoder_attention_heads

        bias = torch.zeros(config.vocab_size)
        bias[never] = -math.inf
        bias[_START:] = -math.inf
        self._bias = bias.to(device)
        self._first_bias = bias.index_fill(0, never_first, -math.inf).to(device)
        mel = mel_filter_bank(
            num_frequency_bins=201, num_mel_filters=80, min_frequency=0.0, max_frequency=8000.0,
            sampling_rate=_WHISPER_RATE, norm="slaney", mel_scale="slaney",
        )  # fmt: skip
        self._mel = torch.from_numpy(mel).float().T.contiguous().to(device)
        self._hann = torch.hann_window(400, device=device)
        self._kernel = resampling_kernel().to(device)

    def transcribe(self, audio: list[Audio]) -> list[str]:
        """Transcripts of 24 kHz signals, each (samples,), of which only the first 30 s are used."""
        rows = self._tokens(audio).cpu().tolist()
        texts = self._tokenizer.decode_batch([[token for token in row if token < _END] for row in rows])
        return [text.strip() for text in texts]

    def _features(self, audio: list[Audio]) -> Tensor:
        """Log-mel spectra (batch, 80, 3000) of 24 kHz signals, padded or truncated to 30 s."""
        batch = torch.zeros(len(audio), max(3, *(len(a) for a in audio)), dtype=torch.int16)
        for row, samples in zip(batch, audio, strict=True):
            row[: len(samples)] = torch.from_numpy(np.ascontiguousarray(samples))
        signal = resample(batch.to(self.device).float() / 32768, self._kernel)[:, :_WINDOW]
        signal = F.pad(signal, (0, _WINDOW - signal.shape[1]))
        spectrum = torch.stft(
            signal, 400, 160, window=self._hann, center=True, pad_mode="reflect", return_complex=True
        )
        power = spectrum.real.square() + spectrum.imag.square()
        logs = (self._mel @ power[..., :-1]).clamp_min(1e-10).log10()
        return (torch.maximum(logs, logs.amax((1, 2), keepdim=True) - 8) + 4) / 4

    def _split(self, states: Tensor) -> Tensor:
        """(batch, time, width) -> (batch, heads, time, width / heads)."""
        return states.unflatten(-1, (self._heads, -1)).transpose(1, 2)

    def _encode(self, audio: list[Audio]) -> list[tuple[Tensor, Tensor]]:
        """Cross-attention keys and values per decoder layer, each (batch, heads, time, width / heads)."""
        whisper, caches = self._whisper.model, list[tuple[Tensor, Tensor]]()
        for begin in range(0, len(audio), _ENCODED_AT_ONCE):
            part = slice(begin, begin + _ENCODED_AT_ONCE)
            hidden = whisper.encoder(self._features(audio[part]).to(self._dtype))[0]
            for index, layer in enumerate(whisper.decoder.layers):
                keys, values = (
                    self._split(project(hidden))
                    for project in (layer.encoder_attn.k_proj, layer.encoder_attn.v_proj)
                )
                if begin == 0:  # One allocation for the whole batch, filled part by part.
                    shape = (len(audio), *keys.shape[1:])
                    caches.append((keys.new_empty(shape), keys.new_empty(shape)))
                caches[index][0][part], caches[index][1][part] = keys, values
        return caches

    @torch.inference_mode()
    def _tokens(self, audio: list[Audio]) -> Tensor:
        """Greedy transcripts (batch, steps) as token ids, padded with the end token."""
        cross, count = self._encode(audio), len(audio)
        decoder = self._whisper.model.decoder
        own = [
            tuple(
                torch.empty(count, self._heads, _MAX_TOKENS + 2, 64, device=self.device, dtype=self._dtype)
                for _ in range(2)
            )
            for _ in decoder.layers
        ]
        current = torch.full((count,), _START, device=self.device)
        finished = torch.zeros(count, dtype=torch.bool, device=self.device)
        result: list[Tensor] = []
        for step in range(_MAX_TOKENS + 1):
            x = (decoder.embed_tokens(current) + decoder.embed_positions.weight[step])[:, None]
            for layer, (keys, values), (cross_keys, cross_values) in zip(
                decoder.layers, own, cross, strict=True
            ):
                self_attn, cross_attn = layer.self_attn, layer.encoder_attn
                h = layer.self_attn_layer_norm(x)
                keys[:, :, step] = self._split(self_attn.k_proj(h))[:, :, 0]
                values[:, :, step] = self._split(self_attn.v_proj(h))[:, :, 0]
                h = F.scaled_dot_product_attention(
                    self._split(self_attn.q_proj(h)), keys[:, :, : step + 1], values[:, :, : step + 1]
                )
                x = x + self_attn.out_proj(h.transpose(1, 2).flatten(2))
                q = self._split(cross_attn.q_proj(layer.encoder_attn_layer_norm(x)))
                h = F.scaled_dot_product_attention(q, cross_keys, cross_values)
                x = x + cross_attn.out_proj(h.transpose(1, 2).flatten(2))
                x = x + layer.fc2(F.gelu(layer.fc1(layer.final_layer_norm(x))))
            if step + 1 < len(_PROMPT):
                current = torch.full_like(current, _PROMPT[step + 1])
                continue
            logits = self._whisper.proj_out(decoder.layer_norm(x[:, 0])).float()
            current = (logits + (self._bias if result else self._first_bias)).argmax(-1)
            current = current.masked_fill(finished, _END)
            finished = finished | (current == _END)
            result.append(current)
            if len(result) % _STEPS_BETWEEN_ENDS == 0 and bool(finished.all()):
                break
        return torch.stack(result, 1)


def resampling_kernel(radius: int = 36, cutoff: float = 0.96) -> Tensor:
    """Windowed-sinc low-pass (2, 1, 2 · radius + 2) from three 24 kHz samples to two 16 kHz samples.

    cutoff: relative to 8 kHz, the Nyquist frequency of 16 kHz. The two phases are at 0 and 1.5 input samples.
    """
    phases = torch.tensor([[0.0], [1.5]], dtype=torch.float64)
    at = torch.arange(-radius, radius + 2, dtype=torch.float64) - phases
    window = 0.5 * (1 + torch.cos(math.pi * at / radius)) * (at.abs() < radius)
    kernel = torch.sinc(at * (2 / 3) * cutoff) * window
    return (kernel / kernel.sum(1, keepdim=True))[:, None].float()


def resample(signal: Tensor, kernel: Tensor) -> Tensor:
    """Resample 24 kHz (batch, samples) to 16 kHz (batch, 2 / 3 · samples, rounded up to an even number)."""
    radius = kernel.shape[2] // 2 - 1
    padded = F.pad(signal, (radius, radius + 1 + -signal.shape[1] % 3))
    return F.conv1d(padded[:, None], kernel, stride=3).transpose(1, 2).flatten(1)
