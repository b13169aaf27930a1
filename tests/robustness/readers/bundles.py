"""Readers of a bundle's small files: manifest, constants, tokeniser."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

from robustness.mutations import document_bytes, mutated_bytes, mutated_document
from robustness.reader import Reader
from robustness.readers.texts import TEXTS


def changed_json(content: bytes, chance: random.Random) -> bytes:
    """A JSON document with other values, or sometimes with other bytes."""
    if chance.random() < 0.8:
        return document_bytes(mutated_document(json.loads(content), chance))
    return mutated_bytes(content, chance)


def _documents(content: bytes) -> Any:
    from robustness.strategies import changed_document

    return changed_document(json.loads(content))


def manifest(bundle: Path, folder: Path) -> Reader:
    """A manifest without a digest of it: with one, every change is refused before it is read."""
    from voxcpm_constants.manifest import Manifest
    from voxcpm_runtime.bundle.opening import _check_declaration, choose_precision

    content = (bundle / "manifest.json").read_bytes()

    def read(changed: bytes) -> None:
        (folder / "manifest.json").write_bytes(changed)
        found = Manifest.read(folder)
        _check_declaration(folder, found)
        found.digest(choose_precision(folder, found, None))

    return Reader((content,), read, changed_json, lambda: _documents(content))


def npy(bundle: Path, folder: Path) -> Reader:
    """The smallest of the constants."""
    from voxcpm_constants.arrays import load_constants
    from voxcpm_constants.manifest import Manifest

    architecture = Manifest.read(bundle).architecture
    shutil.copytree(bundle / "constants", folder / "constants")
    path = min((folder / "constants").glob("*.npy"), key=lambda path: path.stat().st_size)
    content = path.read_bytes()
    part = folder / "new"

    def read(changed: bytes) -> None:
        # Never in place: the earlier one is mapped.
        part.write_bytes(changed)
        part.replace(path)
        load_constants(folder / "constants", architecture)

    def changed(content: bytes, chance: random.Random) -> bytes:
        start, rest = content[:128], content[128:]
        if chance.random() < 0.8:
            return mutated_bytes(start, chance) + rest
        return mutated_bytes(content, chance)

    def structured() -> Any:
        from robustness.formats import npy_files

        return npy_files(content)

    return Reader((content,), read, changed, structured)


def tokenizer(bundle: Path, folder: Path) -> Reader:
    return _tokenizer_file(bundle, folder, "tokenizer.json")


def tokenizer_config(bundle: Path, folder: Path) -> Reader:
    return _tokenizer_file(bundle, folder, "tokenizer_config.json")


def _tokenizer_file(bundle: Path, folder: Path, name: str) -> Reader:
    from voxcpm_runtime.text.tokenizer import TextTokenizer

    shutil.copytree(bundle / "tokenizer", folder, dirs_exist_ok=True)
    content = (folder / name).read_bytes()

    def read(changed: bytes) -> None:
        (folder / name).write_bytes(changed)
        opened = TextTokenizer.from_folder(folder)
        for text in TEXTS:
            opened(text)
            opened.unknown_characters(text)

    return Reader((content,), read, changed_json, lambda: _documents(content))
