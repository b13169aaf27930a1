"""Bundles that were made to do harm."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from edited_manifest import edit_manifest
from robustness.harm.place import LARGE, Act, Place, Runs


def opens(bundle: Path) -> Act:
    from voxcpm_runtime import VoxCPM

    def act() -> object:
        with VoxCPM.from_bundle(bundle, precision="int8", threads=1) as tts:
            tts.speak("Yes.", seed=1, retry_badcase=False, inference_timesteps=2, max_len=2)
        return None

    return act


def recorded(bundle: Path, *names: str) -> None:
    from voxcpm_constants.manifest import Manifest, record_file

    manifest = Manifest.read(bundle)
    records = {**manifest.files, **{name: record_file(bundle / name) for name in names}}
    manifest.model_copy(update={"files": records}).write(bundle)


def listed_as(name: str) -> Callable[[Place], Act]:
    """A manifest that lists a file elsewhere."""

    def make(place: Place) -> Act:
        bundle = place.bundle()
        listed = {name.format(secret=place.secret): {"bytes": 600, "sha256": "0" * 64}}
        edit_manifest(bundle, lambda document: document["files"].update(listed))
        return opens(bundle)

    return make


def linked(name: str) -> Callable[[Place], Act]:
    """A file of the bundle, or a folder, that is a link to its like elsewhere; digests match."""

    def make(place: Place) -> Act:
        bundle = place.bundle()
        target = place.outside / "moved"
        (bundle / name).rename(target)
        (bundle / name).symlink_to(target)
        return opens(bundle)

    return make


def unlisted(name: str, *, link: bool) -> Callable[[Place], Act]:
    """A file that the manifest leaves out, altered in one byte, or a link to a copy of it elsewhere."""

    def make(place: Place) -> Act:
        bundle = place.bundle()
        edit_manifest(bundle, lambda document: document["files"].pop(name))
        path = bundle / name
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
        if link:
            target = place.outside / "moved"
            path.rename(target)
            path.symlink_to(target)
        return opens(bundle)

    return make


def blob_elsewhere(file_name: str) -> Callable[[Place], Act]:
    def make(place: Place) -> Act:
        from voxcpm_runtime.backends.portable.package import MODEL_FILE, read_specification

        bundle = place.bundle()
        package = bundle / "int8/feat_encoder.mlpackage"
        program = read_specification(package)
        (block,) = program.mlProgram.functions["main"].block_specializations.values()
        values = (value for each in block.operations for value in each.attributes.values())
        value = next(value for value in values if value.WhichOneof("value") == "blobFileValue")
        value.blobFileValue.fileName = file_name.format(secret=place.secret)
        (package / MODEL_FILE).write_bytes(program.SerializeToString())
        recorded(bundle, (package / MODEL_FILE).relative_to(bundle).as_posix())
        return opens(bundle)

    return make


def objects_in_npy(place: Place) -> Act:
    import numpy as np

    bundle = place.bundle()
    name = "constants/lm_to_dit_proj_b.npy"
    np.save(bundle / name, np.array([Runs(place.canary)], object), allow_pickle=True)
    recorded(bundle, name)
    return opens(bundle)


def npy_header(version: bytes, length: bytes) -> Callable[[Place], Act]:
    def make(place: Place) -> Act:
        bundle = place.bundle()
        name = "constants/lm_to_dit_proj_b.npy"
        with (bundle / name).open("wb") as file:
            file.write(b"\x93NUMPY" + version + length + b"{'descr': '<f4', 'shape': (" + b"9" * 1000)
            file.truncate(LARGE)
        recorded(bundle, name)
        return opens(bundle)

    return make


def large_json(name: str) -> Callable[[Place], Act]:
    def make(place: Place) -> Act:
        bundle = place.bundle()
        (bundle / name).write_bytes(b'{"a": "' + b"x" * LARGE + b'"}')
        if name != "manifest.json":
            recorded(bundle, name)
        return opens(bundle)

    return make


def tokenizer_regex(place: Place) -> Act:
    bundle = place.bundle()
    path = bundle / "tokenizer/tokenizer.json"
    document = json.loads(path.read_text())
    document["pre_tokenizer"] = {
        "type": "Split", "pattern": {"Regex": r"(a+)+$"}, "behavior": "Isolated", "invert": False,
    }  # fmt: skip
    path.write_text(json.dumps(document))
    recorded(bundle, "tokenizer/tokenizer.json")
    return opens(bundle)
