"""Damage to what is on disk, and what is spoken with it then. One process has a scene of its own and restores it after
each case.
"""

from __future__ import annotations

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

from robustness.mutations import DAMAGES, damaged, mutated_document
from robustness.watched import LINES, OTHER, REFUSED, SAME, Ended
from voxcpm_constants.step_models import Precision

SPEAKING = {"seed": 1, "retry_badcase": False, "inference_timesteps": 2, "max_len": 3}
TEXT = "Yes."
UNNOTICED = "other, with matching digests or none"


def case_of(number: int, files: int) -> tuple[int, str]:
    """The file, of so many, and the damage of a case: three times as many cases give each file each damage."""
    file = number % files
    return file, DAMAGES[(number // files + file) % len(DAMAGES)]


def scene(bundle: str, kinds: list[str], precision: Precision = "int8") -> Callable[[dict[str, Any]], Ended]:
    """What runs a case. bundle: the folder of one with that precision. kinds: what is damaged, which must be there."""
    folder = Path(tempfile.mkdtemp(prefix="damage-", dir=Path(bundle).parent))
    os.environ["VOXCPM_COREML_CACHE"] = str(folder / "cache")
    return _Scene(Path(bundle), folder, kinds, precision)


class _Scene:
    def __init__(self, bundle: Path, folder: Path, kinds: list[str], precision: Precision) -> None:
        from voxcpm_runtime.backends.portable import prepared

        if "prepared" in kinds:
            # The models here are too small for it.
            prepared._MIN_BYTES = 0
        self.folder, self.bundle, self.precision = folder, folder / "bundle", precision
        copy_of_one_precision(bundle, self.bundle, precision)
        self.voice_path = folder / "me.voice"
        self.samples = self._spoken()
        self.tts = self._opened()
        self.samples_of_voice = b""
        if {"voice", "prefix"} & set(kinds):
            self._make_voice()
        if "segments" in kinds:
            self._make_segments()
        if "batch" in kinds:
            (folder / "lines.txt").write_text("Yes.\nNo.\n")
            code, said = self._batch()
            assert code == 0, said
            self.batch = self._batch_files()
        self._before = {path: path.read_bytes() for path in files_of(folder)}

    def __call__(self, case: dict[str, Any]) -> Ended:
        chance = random.Random(json.dumps(case, sort_keys=True))
        kind = case["kind"]
        files = [path for path in self._before if self._is_of(kind, path)]
        file, damage = case_of(case["number"], len(files))
        try:
            where = self._damage(files[file], files, damage, case["matching"], chance)
            ended = self._outcome(kind, matching=case["matching"])
            return Ended(ended.outcome, f"{damage} of {where}: {ended.detail}")
        finally:
            try:
                self._restore()
            except OSError as error:
                # Not to be taken for what the case came to.
                raise RuntimeError(f"the scene cannot be restored: {error}") from error

    def _is_of(self, kind: str, path: Path) -> bool:
        name = path.relative_to(self.folder).as_posix()
        return {
            "bundle": name.startswith("bundle/"),
            "voice": path == self.voice_path,
            "prefix": name.endswith(".prefix"),
            "lowered": name.startswith("cache/lowered/"),
            "prepared": name.startswith("cache/compiled/"),
            "verified": name.startswith("cache/verified/"),
            "segments": ".segments/" in name,
            "batch": name.startswith("spoken/"),
        }[kind]

    def _damage(
        self, path: Path, files: list[Path], damage: str, matching: bool, chance: random.Random
    ) -> str:
        name = str(path.relative_to(self.folder))
        others = [other for other in files if other != path and self._before[other] != self._before[path]]
        if damage == "swap" and others and chance.random() < 0.5:
            alike = [other for other in others if other.name == path.name]
            other = chance.choice(alike or others)
            write_anew(path, self._before[other])
            write_anew(other, self._before[path])
            changed, name = [path, other], f"{name} <-> {other.relative_to(self.folder)}"
        else:
            write_anew(path, damaged(self._before[path], damage, chance))
            changed = [path]
        if matching:
            self._renew_digests(changed, chance)
        return name

    def _renew_digests(self, changed: list[Path], chance: random.Random) -> None:
        """Make the digests that are compared with the damaged files those of the damaged files."""
        from voxcpm_constants.manifest import Manifest, record_file

        for path in changed:
            if path.is_relative_to(self.bundle):
                manifest = Manifest.read(self.bundle)
                name = path.relative_to(self.bundle).as_posix()
                if name in manifest.files:
                    records = {**manifest.files, name: record_file(path)}
                    manifest.model_copy(update={"files": records}).write(self.bundle)
            elif path.suffix == ".lowered":
                start, rest = path.read_bytes()[:8], path.read_bytes()[40:]
                write_anew(path, start + hashlib.sha256(rest).digest() + rest)
            elif path.parent.suffix == ".ort":
                record = path.parent / "files.json"
                names = [each for each in ("model.onnx", "weights.bin") if (path.parent / each).is_file()]
                files = {each: record_file(path.parent / each).model_dump() for each in names}
                write_anew(record, json.dumps(files).encode())
            elif path.suffix in (".voice", ".prefix", ".segment"):
                write_anew(path, resealed(self._before[path], chance))

    def _outcome(self, kind: str, *, matching: bool) -> Ended:
        if kind == "segments":
            return self._resumed(matching=matching)
        if kind == "batch":
            return self._batch_again()
        of_voice = kind in ("voice", "prefix")
        wanted = self.samples_of_voice if of_voice else self.samples
        found = self._spoken_in_voice() if of_voice else self._spoken()
        if found == wanted:
            return Ended(SAME)
        return Ended(UNNOTICED if matching else OTHER)

    def _opened(self) -> Any:
        from voxcpm_runtime import VoxCPM

        return VoxCPM.from_bundle(self.bundle, precision=self.precision, threads=1)

    def _spoken(self) -> bytes:
        with self._opened() as tts:
            audio: bytes = tts.speak(TEXT, **SPEAKING).audio.tobytes()
        return audio

    def _spoken_in_voice(self) -> bytes:
        """With step models that stay open: the damage is to the voice."""
        from voxcpm_runtime import Voice

        self.tts._prefix.cache_clear()
        audio: bytes = self.tts.speak(TEXT, voice=Voice.load(self.voice_path), **SPEAKING).audio.tobytes()
        return audio

    def _make_voice(self) -> None:
        speech = self.tts.speak("One, two.", **{**SPEAKING, "max_len": 12})
        recording = (speech.audio, self.tts.sample_rate)
        self.tts.create_voice(recording, "One, two.", name="me").save(self.voice_path)
        self.samples_of_voice = self._spoken_in_voice()
        assert self.samples_of_voice == self._spoken_in_voice()

    def _make_segments(self) -> None:
        """The saved segments of an interrupted run; all of them, so that the next run speaks none."""
        self.spoken = self._generate(keep=True)
        assert list(self.folder.glob(".book.wav.segments/*.segment"))

    def _resumed(self, *, matching: bool) -> Ended:
        found = self._generate(keep=False)
        if found == self.spoken:
            return Ended(SAME)
        return Ended(UNNOTICED if matching else OTHER)

    def _generate(self, *, keep: bool) -> bytes:
        """The samples of a run that saves its segments. keep: they stay, as after a run that was interrupted."""
        from voxcpm_runtime.speech import saved_segments

        output = self.folder / "book.wav"
        saved = saved_segments.SavedSegments(output, "d" * 64, 1, drawn=False)
        pieces = []
        try:
            for index, text in enumerate(("Yes.", "No.")):
                segment = saved.get(index)
                if segment is None:
                    segment = self.tts.speak(text, **SPEAKING).segments[0]
                    saved.put(index, segment)
                pieces.append(segment.audio.tobytes())
        finally:
            saved.release()
        if not keep:
            saved.discard()
        return b"".join(pieces)

    def _batch(self) -> tuple[int, str]:
        """The exit code of a batch of two lines, and what it says of errors."""
        from voxcpm_runtime.commands.cli import main

        options = (
            "--precision",
            "int8",
            "--threads",
            "1",
            "--inference-timesteps",
            "2",
            "--max-len",
            "3",
            "--no-retry",
        )
        output = ("--seed", "1", "-o", self.folder / "spoken")
        given = ("batch", self.bundle, self.folder / "lines.txt", *options, *output)
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
            code = main([*map(str, given)])
        return code, said.getvalue()

    def _batch_files(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in (self.folder / "spoken").glob("*.wav")}

    def _batch_again(self) -> Ended:
        """A line whose file is there, but not on record, is an error of its line."""
        code, said = self._batch()
        if code and all(line.startswith(("line ", "failed: ", "error: ")) for line in said.splitlines()):
            return Ended(REFUSED, said)
        if code:
            return Ended(LINES, said[-300:])
        return Ended(SAME if self._batch_files() == self.batch else OTHER)

    def _restore(self) -> None:
        for path in files_of(self.folder):
            if path not in self._before:
                path.unlink()
        for path, content in self._before.items():
            if not path.is_file() or path.read_bytes() != content:
                write_anew(path, content)


def copy_of_one_precision(bundle: Path, to: Path, precision: Precision = "int8") -> None:
    """One precision of a bundle alone, so that each file is one that speech needs, a vector or the model card."""
    from voxcpm_constants.manifest import Manifest

    manifest = Manifest.read(bundle)
    others = [name for name in manifest.precisions if name != precision]
    shutil.copytree(bundle, to, ignore=lambda folder, _: others if Path(folder) == bundle else [])
    files = {
        name: file
        for name, file in manifest.files.items()
        if not name.startswith(tuple(f"{p}/" for p in others))
    }
    manifest.model_copy(update={"precisions": (precision,), "files": files}).write(to)


def resealed(content: bytes, chance: random.Random) -> bytes:
    """A file of tensors with a change that its digest knows of: in an element, a shape, a dtype, a name or metadata."""
    import numpy as np

    from voxcpm_runtime.storage.sealed_tensors import sealed, unsealed

    found = unsealed(content)
    tensors, metadata = dict(found.tensors), dict(found.metadata)
    kinds = 6 if metadata else 5
    name = chance.choice(sorted(tensors))
    match chance.randrange(kinds):
        case 0:
            flat = np.frombuffer(damaged(tensors[name].tobytes(), "flip", chance), tensors[name].dtype)
            tensors[name] = flat.reshape(tensors[name].shape)
        case 1:
            tensors[name] = (
                tensors[name][: chance.randrange(len(tensors[name]) + 1)]
                if tensors[name].ndim
                else tensors[name]
            )
        case 2:
            tensors[name] = tensors[name].astype(chance.choice(["f8", "f2", "i4", "u1"]))
        case 3:
            tensors[chance.choice(["", "x", "../x", *tensors])] = tensors.pop(name)
        case 4:
            tensors[name] = tensors[name].reshape(-1, 1)
        case _:
            key = chance.choice(sorted(metadata))
            metadata[key] = json.dumps(mutated_document(json.loads(metadata[key]), chance))
    return sealed(tensors, metadata)


def files_of(folder: Path) -> list[Path]:
    """All files below a folder."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def write_anew(path: Path, content: bytes) -> None:
    """Write another file under a name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Never in place: whoever has the earlier file mapped keeps it.
    part = path.with_name(f"{path.name}.new")
    part.write_bytes(content)
    part.replace(path)
