"""Content that was made to do harm, and what may come of it: an error of one line, and nothing outside touched.

The process that runs it has an audit hook, which sees every file that Python opens, and every program that it starts.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import shutil
import struct
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from robustness.damage import copy_of_one_precision
from robustness.watched import TRACEBACK, Ended, ending

READ = "read, as it is harmless"
LARGE = 100_000_000
_STARTS = (
    "os.system",
    "subprocess.Popen",
    "os.exec",
    "os.posix_spawn",
    "os.startfile",
    "socket.connect",
    "pickle.find_class",
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


class _Runs:
    """An object whose pickle runs a command when it is read."""

    def __init__(self, canary: Path) -> None:
        self._canary = canary

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self._canary}",)


class Place:
    """Where a case happens: `inside` is what may be touched, `outside` has a secret and stays as it is."""

    def __init__(self, bundle: Path, checkpoint: Path, root: Path) -> None:
        self.inside, self.outside = root / "inside", root / "outside"
        self.inside.mkdir()
        self.outside.mkdir()
        self.secret = self.outside / "secret.bin"
        self.canary = self.outside / "canary"
        self._whole, self._checkpoint = bundle, checkpoint

    def bundle(self) -> Path:
        """A copy of the bundle, in int8."""
        copy_of_one_precision(self._whole, self.inside / "bundle")
        return self.inside / "bundle"

    def checkpoint(self) -> Path:
        """A copy of the checkpoint."""
        return Path(shutil.copytree(self._checkpoint, self.inside / "checkpoint"))


def scene(bundle: str, checkpoint: str = "") -> Callable[[str], Ended]:
    """What runs a case by its name."""
    seen: list[str] = []
    watching = SimpleNamespace(outside=None)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if watching.outside is None:
            return
        if event in _STARTS and event != "pickle.find_class":
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


Act = Callable[[], object]


def _opens(bundle: Path) -> Act:
    from voxcpm_runtime import VoxCPM

    def act() -> object:
        with VoxCPM.from_bundle(bundle, precision="int8", threads=1) as tts:
            tts.speak("Yes.", seed=1, retry_badcase=False, inference_timesteps=2, max_len=2)
        return None

    return act


def _recorded(bundle: Path, *names: str) -> None:
    from voxcpm_constants.manifest import Manifest, record_file

    manifest = Manifest.read(bundle)
    records = {**manifest.files, **{name: record_file(bundle / name) for name in names}}
    manifest.model_copy(update={"files": records}).write(bundle)


def _listed_as(name: str) -> Callable[[Place], Act]:
    """A manifest that lists a file elsewhere."""

    def make(place: Place) -> Act:
        bundle = place.bundle()
        document = json.loads((bundle / "manifest.json").read_text())
        document["files"][name.format(secret=place.secret)] = {"bytes": 600, "sha256": "0" * 64}
        (bundle / "manifest.json").write_text(json.dumps(document))
        (bundle / "manifest.sha256").unlink()
        return _opens(bundle)

    return make


def _linked(name: str) -> Callable[[Place], Act]:
    """A file of the bundle, or a folder, that is a link to its like elsewhere; digests match."""

    def make(place: Place) -> Act:
        bundle = place.bundle()
        target = place.outside / "moved"
        (bundle / name).rename(target)
        (bundle / name).symlink_to(target)
        return _opens(bundle)

    return make


def _blob_elsewhere(file_name: str) -> Callable[[Place], Act]:
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
        _recorded(bundle, (package / MODEL_FILE).relative_to(bundle).as_posix())
        return _opens(bundle)

    return make


def _objects_in_npy(place: Place) -> Act:
    import numpy as np

    bundle = place.bundle()
    name = "constants/lm_to_dit_proj_b.npy"
    np.save(bundle / name, np.array([_Runs(place.canary)], object), allow_pickle=True)
    _recorded(bundle, name)
    return _opens(bundle)


def _npy_header(version: bytes, length: bytes) -> Callable[[Place], Act]:
    def make(place: Place) -> Act:
        bundle = place.bundle()
        name = "constants/lm_to_dit_proj_b.npy"
        with (bundle / name).open("wb") as file:
            file.write(b"\x93NUMPY" + version + length + b"{'descr': '<f4', 'shape': (" + b"9" * 1000)
            file.truncate(LARGE)
        _recorded(bundle, name)
        return _opens(bundle)

    return make


def _large_json(name: str) -> Callable[[Place], Act]:
    def make(place: Place) -> Act:
        bundle = place.bundle()
        (bundle / name).write_bytes(b'{"a": "' + b"x" * LARGE + b'"}')
        if name != "manifest.json":
            _recorded(bundle, name)
        return _opens(bundle)

    return make


def _tokenizer_regex(place: Place) -> Act:
    bundle = place.bundle()
    path = bundle / "tokenizer/tokenizer.json"
    document = json.loads(path.read_text())
    document["pre_tokenizer"] = {
        "type": "Split", "pattern": {"Regex": r"(a+)+$"}, "behavior": "Isolated", "invert": False,
    }  # fmt: skip
    path.write_text(json.dumps(document))
    _recorded(bundle, "tokenizer/tokenizer.json")
    return _opens(bundle)


def _pickle(name: str, form: str) -> Callable[[Place], Act]:
    """A checkpoint whose weights run a command."""

    def make(place: Place) -> Act:
        import torch

        folder = place.checkpoint()
        for path in folder.glob(f"{'audiovae' if name.startswith('audiovae') else 'model'}.*"):
            path.unlink()
        content = {"state_dict": {"a": torch.zeros(2), "b": _Runs(place.canary)}}
        if form == "plain":
            (folder / name).write_bytes(pickle.dumps(content))
        else:
            torch.save(content, folder / name, _use_new_zipfile_serialization=form == "zip")
        return _converts(folder)

    return make


def _converts(folder: Path) -> Act:
    def act() -> object:
        from voxcpm_conversion.checkpoint import Checkpoint

        opened = Checkpoint.open(folder)
        for name in opened.shapes:
            opened.tensor(name)
        return None

    return act


def _lora_pickle(place: Place) -> Act:
    import torch

    folder = place.inside / "lora"
    folder.mkdir()
    torch.save({"state_dict": {"a": _Runs(place.canary)}}, folder / "lora_weights.ckpt")
    (folder / "lora_config.json").write_text(
        json.dumps({"base_model": "x", "lora_config": {"r": 2, "alpha": 2}})
    )

    def act() -> object:
        from voxcpm_conversion.checkpoint import Checkpoint
        from voxcpm_conversion.lora import Lora

        Lora.open(folder, Checkpoint.open(place.checkpoint()).architecture)
        return None

    return act


def _zip_members(place: Place) -> Act:
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
    return _converts(folder)


def _shard_elsewhere(place: Place) -> Act:
    folder = place.checkpoint()
    weights = folder / "model.safetensors"
    weights.rename(place.outside / "model.safetensors")
    index = {"weight_map": {"a": "../../outside/model.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return _converts(folder)


def _safetensors_header(place: Place) -> Act:
    folder = place.checkpoint()
    weights = folder / "model.safetensors"
    with weights.open("wb") as file:
        file.write(struct.pack("<Q", LARGE) + b'{"a":' + b" " * 1000)
        file.truncate(LARGE + 8)
    return _converts(folder)


def _voice_header(place: Place) -> Act:
    from voxcpm_runtime import Voice

    path = place.inside / "a.voice"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", LARGE) + b'{"__metadata__":{"voice":"' + b"x" * LARGE + b'"}}')
    return lambda: Voice.load(path) and None


def _wav(chunk: bytes, size: int, file_size: int) -> Callable[[Place], Act]:
    def make(place: Place) -> Act:
        from voxcpm_runtime.audio.files import read_audio

        path = place.inside / "a.wav"
        with path.open("wb") as file:
            start = struct.pack(
                "<4sI4s4sIHHIIHH", b"RIFF", 2**32 - 1, b"WAVE", b"fmt ", 16, 1, 1, 16000, 32000, 2, 16
            )
            file.write(start + struct.pack("<4sI", chunk, size))
            file.truncate(file_size)
        return lambda: read_audio(path, 16000) is None or None

    return make


def _voice_named(name: str) -> Callable[[Place], Act]:
    """A voice's name, as a server's client or `voices` gives it."""

    def make(place: Place) -> Act:
        from voxcpm_runtime.voices.store import VoiceStore
        from voxcpm_server.errors import ApiError
        from voxcpm_server.stored_voices import StoredVoices

        (place.outside / "a.voice").write_bytes(b"x")
        store = VoiceStore(place.inside / "voices")
        given = name.format(outside=place.outside)

        def act() -> object:
            served = StoredVoices(store, {})
            for call in (served.named, served.stored, served.remove, lambda each: served.check_new(each, 9)):
                try:
                    assert call(given) is None, "a voice elsewhere was found"
                except ApiError:  # noqa: PERF203
                    continue
            store.path(given)
            return None

        return act

    return make


def _output_named(name: str) -> Callable[[Place], Act]:
    """An output of a batch's line."""

    def make(place: Place) -> Act:
        from voxcpm_constants.manifest import Manifest
        from voxcpm_runtime.commands.batch_lines import BatchLine, Defaults, Lines
        from voxcpm_runtime.options import GenerationOptions
        from voxcpm_runtime.voices.recordings import Recordings

        defaults = Defaults(
            Manifest.read(place.bundle()).architecture, Recordings(), None, None, GenerationOptions()
        )
        lines = place.inside / "lines.jsonl"
        lines.write_text(json.dumps({"text": "Yes.", "output": name.format(outside=place.outside)}))

        def act() -> object:
            with contextlib.closing(Lines(str(lines), defaults)) as read:
                (line,) = read
            if isinstance(line, BatchLine):
                assert (place.inside / line.output).resolve().is_relative_to(place.inside), line.output
                return None
            return "refused"

        return act

    return make


def _text(piece: str) -> Callable[[Place], Act]:
    """A text that makes a regular expression try everything, at every length that is read at once."""

    def make(place: Place) -> Act:  # noqa: ARG001
        from voxcpm_runtime.text.english import read_aloud
        from voxcpm_runtime.text.sentences import each_sentence
        from voxcpm_runtime.text.words import one_line

        def act() -> object:
            for text in (piece * (4000 // len(piece)), "a " + piece * (4000 // len(piece)) + "\u20ac!"):
                for sentence in each_sentence(text * 5):
                    read_aloud(one_line(sentence.text))
            return None

        return act

    return make


CASES: dict[str, Callable[[Place], Act]] = {
    "manifest: absolute path": _listed_as("{secret}"),
    "manifest: path above": _listed_as("constants/../../../outside/secret.bin"),
    "manifest: path with backslashes": _listed_as("..\\..\\outside\\secret.bin"),
    "link: weights": _linked("int8/feat_encoder.mlpackage/Data/com.apple.CoreML/weights/weight.bin"),
    "link: folder of a precision": _linked("int8"),
    "link: constant": _linked("constants/embed_tokens.npy"),
    "link: tokenizer": _linked("tokenizer"),
    "blob: path above": _blob_elsewhere("@model_path/../../../../../outside/secret.bin"),
    "blob: absolute path": _blob_elsewhere("{secret}"),
    "npy: objects": _objects_in_npy,
    "npy: header of version 2": _npy_header(b"\x02\x00", struct.pack("<I", LARGE - 12)),
    "npy: header of version 1": _npy_header(b"\x01\x00", b"\xff\xff"),
    "JSON: manifest of 100 MB": _large_json("manifest.json"),
    "JSON: tokenizer of 100 MB": _large_json("tokenizer/tokenizer.json"),
    "tokenizer: regular expression": _tokenizer_regex,
    "voice: header of 100 MB": _voice_header,
    "WAV: chunk of 100 MB": _wav(b"LIST", LARGE, LARGE + 44),
    "WAV: chunk of 4 GB": _wav(b"LIST", 2**32 - 1, 1000),
    "WAV: samples of 4 GB": _wav(b"data", 2**32 - 40, 2**32),
    **{f"voice named {name}": _voice_named(name) for name in ("../outside/a", "{outside}/a", "..", "a/../../outside/a", "a\0b")},  # noqa: E501
    **{
        f"output named {name}": _output_named(name)
        for name in ("../outside/a.wav", "{outside}/a.wav", "a/../../outside/a.wav", "a\0.wav", "~/a.wav")
    },
    **{
        f"text of {piece!r}": _text(piece)
        for piece in (
            "1", "1,", "1.", "a.", "A.", "a@", "http://", "www.", "(", "'", "-", "1/", "1:", "$", "$1,", "A", "a'", "M", " .",  # noqa: E501
            "\u200b", "\u0301", "!?", "1-", "+1 ", "a.b.", "I", "\u201c", "#a", "0", "1e", "%", "a_", "&amp;", "./", "Dr. ",  # noqa: E501
        )
    },
}  # fmt: skip

CHECKPOINT_CASES: dict[str, Callable[[Place], Act]] = {
    **{
        f"pickle: {name}, {form}": _pickle(name, form)
        for name in ("pytorch_model.bin", "audiovae.pth")
        for form in ("zip", "old", "plain")
    },
    "pickle: LoRA": _lora_pickle,
    "zip: members elsewhere": _zip_members,
    "shards: path above": _shard_elsewhere,
    "safetensors: header of 100 MB": _safetensors_header,
}
CASES.update(CHECKPOINT_CASES)
