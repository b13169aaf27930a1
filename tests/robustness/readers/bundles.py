"""Readers of a bundle's small files: manifest, constants, tokenizer. Each has an empty folder of its own."""

import random
import shutil
from pathlib import Path

from robustness.mutations import mutated_bytes, mutated_json
from robustness.reader import Reader
from robustness.readers.texts import TEXTS


def manifest(bundle: Path, folder: Path) -> Reader:
    """A manifest without a digest, which would reject every change before it is read."""
    from voxcpm_constants.manifest import Manifest
    from voxcpm_runtime.bundle.opening import _check_declaration, choose_precision

    def read(changed: bytes) -> None:
        (folder / "manifest.json").write_bytes(changed)
        found = Manifest.read(folder)
        _check_declaration(folder, found)
        found.digest(choose_precision(folder, found, None))

    return Reader(((bundle / "manifest.json").read_bytes(),), read, mutated_json)


def npy(bundle: Path, folder: Path) -> Reader:
    """The smallest of the constants."""
    from voxcpm_constants.arrays import load_constants
    from voxcpm_constants.manifest import Manifest

    architecture = Manifest.read(bundle).architecture
    shutil.copytree(bundle / "constants", folder / "constants")
    path = min((folder / "constants").glob("*.npy"), key=lambda path: path.stat().st_size)
    part = folder / "new"

    def read(changed: bytes) -> None:
        # Never in place: the old one is mapped.
        part.write_bytes(changed)
        part.replace(path)
        load_constants(folder / "constants", architecture)

    def changed(content: bytes, chance: random.Random) -> bytes:
        header = 128 if chance.random() < 0.8 else len(content)
        return mutated_bytes(content[:header], chance) + content[header:]

    return Reader((path.read_bytes(),), read, changed)


def tokenizer(bundle: Path, folder: Path) -> Reader:
    return _tokenizer_file(bundle, folder, "tokenizer.json")


def tokenizer_config(bundle: Path, folder: Path) -> Reader:
    return _tokenizer_file(bundle, folder, "tokenizer_config.json")


def _tokenizer_file(bundle: Path, folder: Path, name: str) -> Reader:
    from voxcpm_runtime.text.tokenizer import TextTokenizer

    shutil.copytree(bundle / "tokenizer", folder, dirs_exist_ok=True)

    def read(changed: bytes) -> None:
        (folder / name).write_bytes(changed)
        opened = TextTokenizer.from_folder(folder)
        for text in TEXTS:
            opened(text)
            opened.unknown_characters(text)

    return Reader(((folder / name).read_bytes(),), read, mutated_json)
