"""Content that was made to do harm, and what may come of it: an error of one line, and nothing outside touched.

The process that runs it has an audit hook, which sees every file that Python opens, and every program that it starts;
what C libraries open by themselves it does not see. The content is made in `harm/`.
"""

from __future__ import annotations

import os
import shutil
import struct
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from robustness.harm import bundles, checkpoints, inputs
from robustness.harm.place import LARGE, Act, Place
from robustness.watched import TRACEBACK, Ended, ending

WEIGHTS = "int8/feat_encoder.mlpackage/Data/com.apple.CoreML/weights/weight.bin"
READ = "read, as it is harmless"
_STARTS = (
    "os.system",
    "subprocess.Popen",
    "os.exec",
    "os.posix_spawn",
    "os.startfile",
    "socket.connect",
)
_WRITES = (
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.mkdir",
    "os.link",
    "os.symlink",
    "shutil.rmtree",
    "os.chmod",
    "os.truncate",
)


def scene(bundle: str, checkpoint: str = "") -> Callable[[str], Ended]:
    """What runs a case by its name."""
    seen: list[str] = []
    watching = SimpleNamespace(outside=None)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if watching.outside is None:
            return
        if event in _STARTS:
            seen.append(f"{event} {arguments[:1]}")
        elif event in ("open", *_WRITES):
            for path in arguments[:2]:
                if isinstance(path, str | bytes | os.PathLike):
                    real = os.path.realpath(os.fsdecode(path))
                    if Path(real).is_relative_to(watching.outside):
                        seen.append(f"{event} {real}")

    sys.addaudithook(hook)

    def run(case: str) -> Ended:
        root = Path(tempfile.mkdtemp(prefix="hostile-", dir=Path(bundle).parent))
        place = Place(Path(bundle), Path(checkpoint), root)
        os.environ["VOXCPM_COREML_CACHE"] = str(place.inside / "cache")
        place.secret.write_bytes(b"secret" * 100)
        try:
            act = CASES[case](place)
            before = _listing(place.outside)
            seen.clear()
            watching.outside = place.outside
            try:
                ended = ending(lambda: Ended(str(act() or READ)))
            finally:
                watching.outside = None
            touched = [*seen, *({*_listing(place.outside)} ^ {*before})]
            return Ended(TRACEBACK, f"touched: {touched}") if touched else ended
        finally:
            shutil.rmtree(root, ignore_errors=True)

    return run


def _listing(folder: Path) -> list[str]:
    return [f"{path} {path.stat().st_size}" for path in sorted(folder.rglob("*"))]


CASES: dict[str, Callable[[Place], Act]] = {
    "manifest: absolute path": bundles.listed_as("{secret}"),
    "manifest: path above": bundles.listed_as("constants/../../../outside/secret.bin"),
    "manifest: path with backslashes": bundles.listed_as("..\\..\\outside\\secret.bin"),
    "link: weights": bundles.linked(WEIGHTS),
    "link: folder of a precision": bundles.linked("int8"),
    "link: constant": bundles.linked("constants/embed_tokens.npy"),
    "link: tokenizer": bundles.linked("tokenizer"),
    "unlisted: weights": bundles.unlisted(WEIGHTS, link=False),
    "unlisted: link to weights": bundles.unlisted(WEIGHTS, link=True),
    "blob: path above": bundles.blob_elsewhere("@model_path/../../../../../outside/secret.bin"),
    "blob: absolute path": bundles.blob_elsewhere("{secret}"),
    "npy: objects": bundles.objects_in_npy,
    "npy: header of version 2": bundles.npy_header(b"\x02\x00", struct.pack("<I", LARGE - 12)),
    "npy: header of version 1": bundles.npy_header(b"\x01\x00", b"\xff\xff"),
    "JSON: manifest of 100 MB": bundles.large_json("manifest.json"),
    "JSON: tokenizer of 100 MB": bundles.large_json("tokenizer/tokenizer.json"),
    "tokenizer: regular expression": bundles.tokenizer_regex,
    "voice: header of 100 MB": inputs.voice_header,
    "WAV: chunk of 100 MB": inputs.wav(b"LIST", LARGE, LARGE + 44),
    "WAV: chunk of 4 GB": inputs.wav(b"LIST", 2**32 - 1, 1000),
    "WAV: samples of 4 GB": inputs.wav(b"data", 2**32 - 40, 2**32),
    **{f"voice named {name}": inputs.voice_named(name) for name in ("../outside/a", "{outside}/a", "..", "a/../../outside/a", "a\0b")},  # noqa: E501
    **{
        f"output named {name}": inputs.output_named(name)
        for name in ("../outside/a.wav", "{outside}/a.wav", "a/../../outside/a.wav", "a\0.wav", "~/a.wav")
    },
    **{
        f"text of {piece!r}": inputs.text(piece)
        for piece in (
            "1", "1,", "1.", "a.", "A.", "a@", "http://", "www.", "(", "'", "-", "1/", "1:", "$", "$1,", "A", "a'", "M", " .",  # noqa: E501
            "\u200b", "\u0301", "!?", "1-", "+1 ", "a.b.", "I", "\u201c", "#a", "0", "1e", "%", "a_", "&amp;", "./", "Dr. ",  # noqa: E501
        )
    },
}  # fmt: skip

CHECKPOINT_CASES: dict[str, Callable[[Place], Act]] = {
    **{
        f"pickle: {name}, {form}": checkpoints.pickled_weights(name, form)
        for name in ("pytorch_model.bin", "audiovae.pth")
        for form in ("zip", "old", "plain")
    },
    "pickle: LoRA": checkpoints.lora_pickle,
    "zip: members elsewhere": checkpoints.zip_members,
    "shards: path above": checkpoints.shard_elsewhere,
    "safetensors: header of 100 MB": checkpoints.safetensors_header,
}
CASES.update(CHECKPOINT_CASES)
