"""Damages files on disk, then reads them: one kind of file at a time, restored after each case."""

import hashlib
import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from robustness.mutations import DAMAGES, damaged
from robustness.watched import OTHER, SAME, Ended
from voxcpm_constants.manifest import Manifest
from voxcpm_runtime import Voice, VoxCPM
from voxcpm_runtime.speech.saved_segments import SavedSegments

SPEAKING = {"seed": 1, "retry_badcase": False, "inference_timesteps": 2, "max_len": 3}
TEXT = "Yes."
UNNOTICED = "other, as there are no digests"
WITHOUT_DIGESTS = ("checkpoint", "lora")
Read = Callable[[], "bytes | Ended"]
"""The speech or content read, or how it ended. Raises what the reader raises."""


class Damaged:
    """What runs a case, {"number", "seed"}: one of the files is damaged and read."""

    def __init__(self, kind, folder, pattern, read):
        self._kind, self._folder, self._read = kind, folder, read
        self._whole = read()
        assert isinstance(self._whole, bytes), self._whole
        self._before = {path: path.read_bytes() for path in _files(folder)}
        self._paths = sorted(path for path in folder.glob(pattern) if path.is_file())

    def __call__(self, case):
        chance = random.Random(json.dumps(case, sort_keys=True))
        # Three cases per file cover each kind of damage.
        number, count = case["number"], len(self._paths)
        path = self._paths[number % count]
        damage = DAMAGES[(number // count + number % count) % len(DAMAGES)]
        others = [other for other in self._paths if self._before[other] != self._before[path]]
        if damage == "swap" and others and chance.random() < 0.5:
            other = chance.choice([each for each in others if each.name == path.name] or others)
            _replace(path, self._before[other])
            _replace(other, self._before[path])
        else:
            _replace(path, damaged(self._before[path], damage, chance))
        try:
            found = self._read()
        finally:
            self._restore()
        if isinstance(found, Ended):
            return found
        differs = UNNOTICED if self._kind in WITHOUT_DIGESTS else OTHER
        return Ended(SAME if found == self._whole else differs, f"{damage} of {path}")

    def _restore(self):
        try:
            for path in _files(self._folder):
                if path not in self._before:
                    path.unlink()
            for path, content in self._before.items():
                if not path.is_file() or path.read_bytes() != content:
                    _replace(path, content)
        except OSError as error:
            # Not to be mistaken for the case's outcome.
            raise RuntimeError(f"the files cannot be restored: {error}") from error


def scene(kind, source, precision="int8", checkpoint=""):
    """What runs a case. source: a bundle that speaks, a checkpoint or a LoRA. checkpoint: the one of a LoRA."""
    folder = Path(tempfile.mkdtemp(prefix="damage-", dir=Path(source).parent))
    if kind in ("checkpoint", "lora"):
        copy = Path(shutil.copytree(source, folder / "copy"))
        return Damaged(kind, folder, "copy/*", lambda: _weights(copy, checkpoint))
    os.environ["VOXCPM_COREML_CACHE"] = str(folder / "cache")
    copy_of_one_precision(Path(source), folder / "bundle", precision)
    make, pattern = KINDS[kind]
    return Damaged(kind, folder, pattern, make(folder, precision))


def _weights(folder, checkpoint):
    """Read a checkpoint like a conversion, with the LoRA in the folder if there is one."""
    from voxcpm_conversion.checkpoint import Checkpoint

    opened = Checkpoint.open(checkpoint, lora=folder) if checkpoint else Checkpoint.open(folder)
    whole = hashlib.sha256(repr((opened.architecture, opened.source())).encode())
    for name in sorted(opened.shapes()):
        whole.update(opened.tensor(name).numpy().tobytes())
    for name, path in sorted(opened.tokenizer_files().items()):
        whole.update(name.encode() + path.read_bytes())
    return whole.digest()


def _opened(folder, precision):

    return VoxCPM.from_bundle(folder / "bundle", precision=precision, threads=1)


def _speech(folder, precision):
    """A bundle that is opened for each case, with the user's cache."""

    def read():
        with _opened(folder, precision) as tts:
            return tts.speak(TEXT, **SPEAKING).audio.tobytes()

    return read


def _voice(folder, precision):
    """A saved voice, with step models that stay open."""
    tts, path = _opened(folder, precision), folder / "me.voice"
    speech = tts.speak("One, two.", **{**SPEAKING, "max_len": 12})
    tts.create_voice((speech.audio, tts.sample_rate), "One, two.", name="me").save(path)

    def read():
        tts._prefix.cache_clear()
        return tts.speak(TEXT, voice=Voice.load(path), **SPEAKING).audio.tobytes()

    return read


def _segments(folder, precision):
    """All segments saved by an interrupted run, so that the next run speaks none."""
    tts = _opened(folder, precision)

    def read():
        saved = SavedSegments(folder / "book.wav", "d" * 64, 1, drawn=False)
        pieces = []
        try:
            for index, text in enumerate(("Yes.", "No.")):
                segment = saved.get(index)
                if segment is None:
                    segment = tts.speak(text, **SPEAKING).segments[0]
                    saved.put(index, segment)
                pieces.append(segment.audio.tobytes())
        finally:
            saved.release()
        return b"".join(pieces)

    return read


KINDS = {
    "bundle": (_speech, "bundle/**/*"),
    "lowered": (_speech, "cache/lowered/*"),
    "verified": (_speech, "cache/verified/*"),
    "voice": (_voice, "me.voice"),
    "prefix": (_voice, "**/*.prefix"),
    "segments": (_segments, ".book.wav.segments/*"),
}
"""What is damaged → what makes it in a folder with a bundle and returns what reads it, and a pattern of its files."""


def copy_of_one_precision(bundle, to, precision="int8"):
    """One precision of a bundle alone, so that each file is one that speech needs, a vector or the model card."""
    manifest = Manifest.read(bundle)
    others = [name for name in manifest.precisions if name != precision]
    shutil.copytree(bundle, to, ignore=lambda folder, _: others if Path(folder) == bundle else [])
    left_out = tuple(f"{name}/" for name in others)
    files = {name: file for name, file in manifest.files.items() if not name.startswith(left_out)}
    manifest.model_copy(update={"precisions": (precision,), "files": files}).write(to)


def _files(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _replace(path, content):
    """Replace a file, never in place, as processes may have the old one mapped."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.new")
    part.write_bytes(content)
    part.replace(path)
