"""Content that was made to do harm, and what may come of it: an error of one line, and nothing outside touched.

The process that runs it has an audit hook, which sees every file that Python opens, and every program that it starts;
what C libraries open by themselves it does not see.
"""

import json
import os
import pickle
import shutil
import struct
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

from robustness.damage import copy_of_one_precision
from robustness.watched import TRACEBACK, Ended, ending
from voxcpm_constants.manifest import Manifest, record_file
from voxcpm_runtime import Voice, VoxCPM
from voxcpm_runtime.backends.portable.package import MODEL_FILE, read_specification

LARGE = 100_000_000
"""The size of oversized content."""
READ = "read"
NPY = "constants/lm_to_dit_proj_b.npy"
_STARTS = {"os.system", "subprocess.Popen", "os.exec", "os.posix_spawn", "os.startfile", "socket.connect"}
_TOUCHES = {
    *("open", "os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "shutil.rmtree"),
    *("os.chmod", "os.truncate"),
}


class Place:
    """Folders of a case: `inside` may be modified; `outside` has a secret and must not change."""

    def __init__(self, bundle, checkpoint):
        root = Path(tempfile.mkdtemp(prefix="hostile-", dir=Path(bundle).parent))
        self.root, self.inside, self.outside = root, root / "inside", root / "outside"
        self.inside.mkdir()
        self.outside.mkdir()
        self.secret, self.canary = self.outside / "secret.bin", self.outside / "canary"
        self.secret.write_bytes(b"secret" * 100)
        if checkpoint:
            self.checkpoint = Path(shutil.copytree(checkpoint, self.inside / "checkpoint"))
        else:
            self.bundle = self.inside / "bundle"
            copy_of_one_precision(Path(bundle), self.bundle)

    def record(self, name):
        """Update the manifest's digest of a file."""
        manifest = Manifest.read(self.bundle)
        files = {**manifest.files, name: record_file(self.bundle / name)}
        manifest.model_copy(update={"files": files}).write(self.bundle)


class Runs:
    """An object whose pickle runs a command when it is read."""

    def __init__(self, canary):
        self._canary = canary

    def __reduce__(self):
        return os.system, (f"touch {self._canary}",)


Change = Callable[[Place], object]
"""Creates the content; may return a function that reads it."""


def opens(place):

    with VoxCPM.from_bundle(place.bundle, precision="int8", threads=1) as tts:
        tts.speak("Yes.", seed=1, retry_badcase=False, inference_timesteps=2, max_len=2)


def converts(place):
    from voxcpm_conversion.checkpoint import Checkpoint

    opened = Checkpoint.open(place.checkpoint)
    for name in opened.shapes():
        opened.tensor(name)


def blob_elsewhere(file_name):
    """A program whose weights are in a file elsewhere."""

    def change(place):
        package = place.bundle / "int8/feat_encoder.mlpackage"
        program = read_specification(package)
        (block,) = program.mlProgram.functions["main"].block_specializations.values()
        values = (value for each in block.operations for value in each.attributes.values())
        value = next(value for value in values if value.WhichOneof("value") == "blobFileValue")
        value.blobFileValue.fileName = file_name.format(secret=place.secret)
        (package / MODEL_FILE).write_bytes(program.SerializeToString())
        place.record((package / MODEL_FILE).relative_to(place.bundle).as_posix())

    return change


def large(name, start, end=b"", fill=b"\0"):
    """A file of the bundle of 100 MB."""

    def change(place):
        (place.bundle / name).write_bytes(start + fill * (LARGE - len(start) - len(end)) + end)
        if name != "manifest.json":
            place.record(name)

    return change


def voice_header(place):

    path = place.inside / "a.voice"
    path.write_bytes(struct.pack("<Q", LARGE) + b'{"__metadata__":{"voice":"' + b"x" * LARGE + b'"}}')
    return lambda: Voice.load(path)


def pickled_weights(name, form):
    """A checkpoint whose weights run a command."""

    def change(place):
        import torch

        for path in place.checkpoint.glob(f"{'audiovae' if name.startswith('audiovae') else 'model'}.*"):
            path.unlink()
        content = {"state_dict": {"a": torch.zeros(2), "b": Runs(place.canary)}}
        if form == "plain":
            (place.checkpoint / name).write_bytes(pickle.dumps(content))
        else:
            torch.save(content, place.checkpoint / name, _use_new_zipfile_serialization=form == "zip")

    return change


def lora_pickle(place):
    import torch

    from voxcpm_conversion.checkpoint import Checkpoint

    folder = place.inside / "lora"
    folder.mkdir()
    torch.save({"state_dict": {"a": Runs(place.canary)}}, folder / "lora_weights.ckpt")
    config = {"base_model": "x", "lora_config": {"r": 2, "alpha": 2}}
    (folder / "lora_config.json").write_text(json.dumps(config))
    return lambda: Checkpoint.open(place.checkpoint, lora=folder)


def safetensors_header(place):
    with (place.checkpoint / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", LARGE) + b'{"a":' + b" " * 1000)
        file.truncate(LARGE + 8)


BUNDLES = {
    "blob: path above": blob_elsewhere("@model_path/../../../../../outside/secret.bin"),
    "blob: absolute path": blob_elsewhere("{secret}"),
    "npy: header of version 2": large(
        NPY, b"\x93NUMPY\x02\x00" + struct.pack("<I", LARGE - 12) + b"{'descr': '<f4'"
    ),
    "npy: header of version 1": large(NPY, b"\x93NUMPY\x01\x00\xff\xff{'descr': '<f4'"),
    "JSON: manifest of 100 MB": large("manifest.json", b'{"a": "', b'"}', b"x"),
    "JSON: tokenizer of 100 MB": large("tokenizer/tokenizer.json", b'{"a": "', b'"}', b"x"),
    "voice: header of 100 MB": voice_header,
}
CHECKPOINTS = {
    **{
        f"pickle: {name}, {form}": pickled_weights(name, form)
        for name in ("pytorch_model.bin", "audiovae.pth")
        for form in ("zip", "old", "plain")
    },
    "pickle: LoRA": lora_pickle,
    "safetensors: header of 100 MB": safetensors_header,
}


def scene(bundle, checkpoint=""):
    """What runs a case by its name: one of CHECKPOINTS with a checkpoint, otherwise one of BUNDLES."""
    seen = []
    watching = SimpleNamespace(outside=None)

    def hook(event, arguments):
        if watching.outside is None:
            return
        if event in _STARTS:
            seen.append(f"{event} {arguments[:1]}")
        elif event in _TOUCHES:
            for path in arguments[:2]:
                if isinstance(path, str | bytes | os.PathLike):
                    real = os.path.realpath(os.fsdecode(path))
                    if Path(real).is_relative_to(watching.outside):
                        seen.append(f"{event} {real}")

    sys.addaudithook(hook)

    def run(case):
        place = Place(bundle, checkpoint)
        os.environ["VOXCPM_COREML_CACHE"] = str(place.inside / "cache")
        try:
            read = (CHECKPOINTS if checkpoint else BUNDLES)[case](place)
            if not callable(read):
                read = lambda: (converts if checkpoint else opens)(place)  # noqa: E731
            before = _listing(place.outside)
            seen.clear()
            watching.outside = place.outside
            try:
                ended = ending(lambda: Ended((read(), READ)[1]))
            finally:
                watching.outside = None
            touched = [*seen, *({*_listing(place.outside)} ^ {*before})]
            return Ended(TRACEBACK, f"touched: {touched}") if touched else ended
        finally:
            shutil.rmtree(place.root, ignore_errors=True)

    return run


def _listing(folder):
    return [f"{path} {path.stat().st_size}" for path in sorted(folder.rglob("*"))]
