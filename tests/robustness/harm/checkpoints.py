"""Checkpoints and LoRAs that were made to do harm."""

from __future__ import annotations

import io
import json
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

from robustness.harm.place import LARGE, Act, Place, Runs


def pickled_weights(name: str, form: str) -> Callable[[Place], Act]:
    """A checkpoint whose weights run a command."""

    def make(place: Place) -> Act:
        import torch

        folder = place.checkpoint()
        for path in folder.glob(f"{'audiovae' if name.startswith('audiovae') else 'model'}.*"):
            path.unlink()
        content = {"state_dict": {"a": torch.zeros(2), "b": Runs(place.canary)}}
        if form == "plain":
            (folder / name).write_bytes(pickle.dumps(content))
        else:
            torch.save(content, folder / name, _use_new_zipfile_serialization=form == "zip")
        return converts(folder)

    return make


def converts(folder: Path) -> Act:
    def act() -> object:
        from voxcpm_conversion.checkpoint import Checkpoint

        opened = Checkpoint.open(folder)
        for name in opened.shapes:
            opened.tensor(name)
        return None

    return act


def lora_pickle(place: Place) -> Act:
    import torch

    folder = place.inside / "lora"
    folder.mkdir()
    torch.save({"state_dict": {"a": Runs(place.canary)}}, folder / "lora_weights.ckpt")
    (folder / "lora_config.json").write_text(
        json.dumps({"base_model": "x", "lora_config": {"r": 2, "alpha": 2}})
    )

    def act() -> object:
        from voxcpm_conversion.checkpoint import Checkpoint
        from voxcpm_conversion.lora import Lora

        Lora.open(folder, Checkpoint.open(place.checkpoint()).architecture)
        return None

    return act


def zip_members(place: Place) -> Act:
    """A checkpoint in zip form with members that name places elsewhere."""
    import torch

    folder = place.checkpoint()
    for path in folder.glob("*.safetensors"):
        path.unlink()
    whole = io.BytesIO()
    torch.save({"state_dict": {"a": torch.zeros(2)}}, whole)
    with zipfile.ZipFile(whole, "a") as archive:
        archive.writestr("../../outside/canary", "x")
        archive.writestr(str(place.canary), "x")
    (folder / "pytorch_model.bin").write_bytes(whole.getvalue())
    return converts(folder)


def shard_elsewhere(place: Place) -> Act:
    folder = place.checkpoint()
    weights = folder / "model.safetensors"
    weights.rename(place.outside / "model.safetensors")
    index = {"weight_map": {"a": "../../outside/model.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return converts(folder)


def safetensors_header(place: Place) -> Act:
    folder = place.checkpoint()
    weights = folder / "model.safetensors"
    with weights.open("wb") as file:
        file.write(struct.pack("<Q", LARGE) + b'{"a":' + b" " * 1000)
        file.truncate(LARGE + 8)
    return converts(folder)
