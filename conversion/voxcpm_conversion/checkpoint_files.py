"""The files of a checkpoint, in a folder or on the hub: their names, what is wrong with them, and the download."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from voxcpm_constants.errors import CheckpointError
from voxcpm_constants.json_files import read_bounded, read_json
from voxcpm_constants.manifest import MANIFEST_FILE, MODEL_CARD_FILE
from voxcpm_constants.speech_profile import SPEECH_FILE
from voxcpm_constants.tokenizer_file import TOKENIZER_CONFIG_FILE, TOKENIZER_FILE
from voxcpm_conversion.lora import WEIGHT_FILES as LORA_FILES
from voxcpm_conversion.weight_files import downloaded

CONFIG_FILE = "config.json"
# In upstream's order of preference (`from_local`); the sharded form occurs on the hub.
MODEL_FILES = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin")
VAE_FILES = ("audiovae.safetensors", "audiovae.pth")
_WEIGHT_SUFFIXES = (".safetensors", ".safetensors.index.json", ".bin", ".pth", ".pt", ".ckpt")
_MAX_CARD_BYTES = 1 << 20
_FRONT_MATTER = re.compile(r"---\r?\n.*?^---", re.DOTALL | re.MULTILINE)
_LICENCE = re.compile(r"^license:[ \t]*[\"']?([\w.+-]+)", re.MULTILINE)
TOKENIZER_COMPANIONS = (TOKENIZER_CONFIG_FILE, "special_tokens_map.json")
_BASE_MODEL = re.compile(r"^base_model:[ \t]*(?:\r?\n[ \t]*-[ \t]*)?[\"']?([\w./-]+)", re.MULTILINE)
_MIN_WEIGHT_BYTES = 1024
"""A smaller file on the hub is not weights; a Git LFS pointer has 130 bytes."""


def check_files(where: str | Path, sizes: Mapping[str, int | None]) -> None:
    """Check names and, on the hub, sizes of a checkpoint's files. Raises CheckpointError."""
    if CONFIG_FILE not in sizes:
        a_lora = any(file in sizes for file in LORA_FILES)
        hint = "; this is a LoRA: pass its base checkpoint, and this one with --lora" if a_lora else ""
        if MANIFEST_FILE in sizes:
            hint = "; this is a bundle, which needs no conversion"
        raise CheckpointError(f"{where}: expected a VoxCPM checkpoint, but it has no {CONFIG_FILE}{hint}")
    if TOKENIZER_FILE not in sizes:
        raise CheckpointError(f"{where}: expected a tokenizer, but there is no {TOKENIZER_FILE}")
    if not any(name in sizes for name in MODEL_FILES):
        raise missing_file(where, sizes, MODEL_FILES)
    for name in (*MODEL_FILES, *VAE_FILES):
        size = sizes.get(name)
        if size is not None and size < _MIN_WEIGHT_BYTES and not name.endswith(".json"):
            raise CheckpointError(
                f"{where}: expected weights in {name}, but it has {size} bytes; the upload failed"
            )


def check_not_mlx(where: str | Path, folder: Path) -> None:
    """Check config.json for MLX's quantisation. Raises CheckpointError."""
    try:
        document = read_json(folder / CONFIG_FILE)
    except (OSError, ValueError):
        return  # `Architecture.from_file` reports it.
    if isinstance(document, dict) and isinstance(document.get("quantization"), dict):
        raise mlx_error(where, folder, document["quantization"])


def mlx_error(where: str | Path, folder: Path, quantization: Mapping[str, object]) -> CheckpointError:
    """The error that names the checkpoint to convert. quantization: the entry of config.json, or empty."""
    base = _BASE_MODEL.search(card_front(folder))
    bits = f"{quantization['bits']}-bit" if "bits" in quantization else "quantised"
    named = (base.group(1),) * 2 if base else ("another checkpoint", "that one")
    return CheckpointError(f"{where}: this is MLX's {bits} form of {named[0]}; convert {named[1]}")


def card_front(folder: Path) -> str:
    """The front matter of the model card; empty without one."""
    try:
        card = read_bounded(folder / MODEL_CARD_FILE, _MAX_CARD_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
    front = _FRONT_MATTER.match(card)
    return front.group() if front else ""


def licence_in_card(folder: Path) -> str:
    """The licence that the front matter names; empty for none."""
    named = _LICENCE.search(card_front(folder))
    return named.group(1) if named else ""


def first_file(folder: Path, names: tuple[str, ...]) -> Path:
    """The first of these files that exists. Raises CheckpointError if none does."""
    path = next((folder / name for name in names if (folder / name).is_file()), None)
    if path is None:
        raise missing_file(folder, [file.name for file in folder.iterdir()], names)
    return path


def missing_file(where: str | Path, there: Iterable[str], names: tuple[str, ...]) -> CheckpointError:
    """The error that none of these files is there, with the names of other weights."""
    known = (*MODEL_FILES, *VAE_FILES)
    others = sorted(name for name in there if name.endswith(_WEIGHT_SUFFIXES) and name not in known)
    found = f"found {', '.join(others[:5])}; rename it if it is that file" if others else "found neither"
    return CheckpointError(f"{where}: expected {' or '.join(names)}, {found}")


def download_checkpoint(
    repository: str, revision: str | None, cache_dir: Path | None, local_files_only: bool
) -> Path:
    """Download a checkpoint's files into the hub's cache, except those already there. Raises CheckpointError."""
    options = {"revision": revision, "cache_dir": cache_dir, "local_files_only": local_files_only}
    if not local_files_only and (sizes := _sizes_on_hub(repository, revision)):
        # Before gigabytes are downloaded.
        check_files(repository, sizes)
        configured = downloaded(repository, [CONFIG_FILE, MODEL_CARD_FILE], "folder", **options)
        check_not_mlx(repository, configured)
    weights = (*MODEL_FILES, "model-*-of-*.safetensors", *VAE_FILES)
    names = [CONFIG_FILE, SPEECH_FILE, MODEL_CARD_FILE, *weights, TOKENIZER_FILE, *TOKENIZER_COMPANIONS]
    return downloaded(repository, names, "folder", **options)


def _sizes_on_hub(repository: str, revision: str | None) -> dict[str, int | None]:
    """The sizes of a repository's files by name; empty if the hub does not say, which the download then reports."""
    from huggingface_hub import HfApi  # slow to import

    try:
        info = HfApi().model_info(repository, revision=revision, files_metadata=True, timeout=10)
    except Exception:  # noqa: BLE001 - the cache may have the files
        return {}
    return {file.rfilename: file.size for file in info.siblings or ()}
