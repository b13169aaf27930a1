"""Damages files on disk, then reads them: one kind of file at a time, restored after each case."""

import contextlib
import hashlib
import io
import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from robustness.mutations import DAMAGES, damaged
from robustness.watched import LINES, OTHER, REFUSED, SAME, Ended
from voxcpm_constants.step_models import Precision

SPEAKING = {"seed": 1, "retry_badcase": False, "inference_timesteps": 2, "max_len": 3}
TEXT = "Yes."
UNNOTICED = "other, as there are no digests"
WITHOUT_DIGESTS = ("checkpoint", "lora")
Read = Callable[[], "bytes | Ended"]
"""The speech or content read, or how it ended. Raises what the reader raises."""


class Damaged:
    """What runs a case, {"number", "seed"}: one of the files is damaged and read."""

    def __init__(self, kind: str, folder: Path, pattern: str, read: Read) -> None:
        self._kind, self._folder, self._read = kind, folder, read
        self._whole = read()
        assert isinstance(self._whole, bytes), self._whole
        self._before = {path: path.read_bytes() for path in _files(folder)}
        self._paths = sorted(path for path in folder.glob(pattern) if path.is_file())

    def __call__(self, case: dict[str, Any]) -> Ended:
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

    def _restore(self) -> None:
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


def scene(kind: str, source: str, precision: Precision = "int8", checkpoint: str = "") -> Damaged:
    """What runs a case. source: a bundle that speaks, a checkpoint or a LoRA. checkpoint: the one of a LoRA."""
    folder = Path(tempfile.mkdtemp(prefix="damage-", dir=Path(source).parent))
    if kind in ("checkpoint", "lora"):
        copy = Path(shutil.copytree(source, folder / "copy"))
        return Damaged(kind, folder, "copy/*", lambda: _weights(copy, checkpoint))
    os.environ["VOXCPM_COREML_CACHE"] = str(folder / "cache")
    copy_of_one_precision(Path(source), folder / "bundle", precision)
    make, pattern = KINDS[kind]
    return Damaged(kind, folder, pattern, make(folder, precision))


def _weights(folder: Path, checkpoint: str) -> bytes:
    """Read a checkpoint like a conversion, with the LoRA in the folder if there is one."""
    from voxcpm_conversion.checkpoint import Checkpoint

    opened = Checkpoint.open(checkpoint, lora=folder) if checkpoint else Checkpoint.open(folder)
    whole = hashlib.sha256(repr((opened.architecture, opened.source())).encode())
    for name in sorted(opened.shapes()):
        whole.update(opened.tensor(name).numpy().tobytes())
    for name, path in sorted(opened.tokenizer_files().items()):
        whole.update(name.encode() + path.read_bytes())
    return whole.digest()


def _opened(folder: Path, precision: Precision) -> Any:
    from voxcpm_runtime import VoxCPM

    return VoxCPM.from_bundle(folder / "bundle", precision=precision, threads=1)


def _speech(folder: Path, precision: Precision) -> Read:
    """A bundle that is opened for each case, with the user's cache."""

    def read() -> bytes:
        with _opened(folder, precision) as tts:
            audio: bytes = tts.speak(TEXT, **SPEAKING).audio.tobytes()
        return audio

    return read


def _voice(folder: Path, precision: Precision) -> Read:
    """A saved voice, with step models that stay open."""
    from voxcpm_runtime import Voice

    tts, path = _opened(folder, precision), folder / "me.voice"
    speech = tts.speak("One, two.", **{**SPEAKING, "max_len": 12})
    tts.create_voice((speech.audio, tts.sample_rate), "One, two.", name="me").save(path)

    def read() -> bytes:
        tts._prefix.cache_clear()
        audio: bytes = tts.speak(TEXT, voice=Voice.load(path), **SPEAKING).audio.tobytes()
        return audio

    return read


def _segments(folder: Path, precision: Precision) -> Read:
    """All segments saved by an interrupted run, so that the next run speaks none."""
    from voxcpm_runtime.speech.saved_segments import SavedSegments

    tts = _opened(folder, precision)

    def read() -> bytes:
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


def _batch(folder: Path, precision: Precision) -> Read:
    """The files of a finished batch that runs again. An existing unrecorded file is an error."""
    from voxcpm_runtime.commands.cli import main

    (folder / "lines.txt").write_text("Yes.\nNo.\n")
    given = (
        "batch", folder / "bundle", folder / "lines.txt", "-o", folder / "spoken", "--precision", precision,
        "--threads", 1, "--inference-timesteps", 2, "--max-len", 3, "--no-retry", "--seed", 1,
    )  # fmt: skip

    def read() -> bytes | Ended:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
            code = main([*map(str, given)])
        if code:
            lines = said.getvalue().splitlines()
            is_refused = all(line.startswith(("line ", "failed: ", "error: ")) for line in lines)
            return Ended(REFUSED if is_refused else LINES, said.getvalue()[-300:])
        return b"".join(path.read_bytes() for path in sorted((folder / "spoken").glob("*.wav")))

    return read


KINDS: dict[str, tuple[Callable[[Path, Precision], Read], str]] = {
    "bundle": (_speech, "bundle/**/*"),
    "lowered": (_speech, "cache/lowered/*"),
    "verified": (_speech, "cache/verified/*"),
    "voice": (_voice, "me.voice"),
    "prefix": (_voice, "**/*.prefix"),
    "segments": (_segments, ".book.wav.segments/*"),
    "batch": (_batch, "spoken/*"),
}
"""What is damaged → what makes it in a folder with a bundle and returns what reads it, and a pattern of its files."""


def copy_of_one_precision(bundle: Path, to: Path, precision: Precision = "int8") -> None:
    """One precision of a bundle alone, so that each file is one that speech needs, a vector or the model card."""
    from voxcpm_constants.manifest import Manifest

    manifest = Manifest.read(bundle)
    others = [name for name in manifest.precisions if name != precision]
    shutil.copytree(bundle, to, ignore=lambda folder, _: others if Path(folder) == bundle else [])
    left_out = tuple(f"{name}/" for name in others)
    files = {name: file for name, file in manifest.files.items() if not name.startswith(left_out)}
    manifest.model_copy(update={"precisions": (precision,), "files": files}).write(to)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _replace(path: Path, content: bytes) -> None:
    """Replace a file, never in place, as processes may have the old one mapped."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.new")
    part.write_bytes(content)
    part.replace(path)
