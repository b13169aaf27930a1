"""The commands that are killed and whose calls to the system fail: what they are given, what they may leave, what they
have finished.
"""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from robustness.children import Case, Children, Ended
from robustness.folder_contents import files
from voxcpm_constants.manifest import package_path
from voxcpm_constants.step_models import RESIDUAL_LM_STEP, STEP_MODEL_NAMES
from voxcpm_constants.vectors import vectors_path

Disturb = Callable[[Any, Path, int, int], tuple[Counter[str], list[str]]]
"""Disturbs a command, which ran whole once, so many times by a seed: outcomes, and what went wrong."""
Judge = Callable[[str, Disturb, str, int], None]
"""Has a command disturbed, and records it: section, how, the command's name, how often."""
BOOK = "Come in.\n\nGo out.\n\nSit down.\n\nGet up."
LINES = ("Yes.", "No.", "One.", "Two.")
# Few Euler steps: what is spoken does not matter, only that it is the same again.
SPEAKING = (
    "--precision",
    "int8",
    "--seed",
    "4",
    "--threads",
    "1",
    "--inference-timesteps",
    "2",
    "--no-retry",
)
# For macOS 15 a language model's package is joined from one for each chunk.
CONVERSION = (
    *("--target", "macos15", "--precision", "int8", "--max-length", "64"),
    *("--prefill-chunk", "1", "--prefill-chunk", "2"),
)
LACKING = {"constants": ("constants", "tokenizer")} | {
    name: (str(package_path("int8", name)), str(vectors_path(name))) for name in STEP_MODEL_NAMES
}
"""What a begun conversion lacks → its folders and files in a bundle."""


@dataclass(frozen=True)
class Materials:
    """What the commands read; they never write there."""

    bundle: Path
    """The built-in voice's."""
    cache: Path
    """A user's cache in which its int8 graphs are lowered."""
    checkpoint: Path
    """A synthetic checkpoint of one layer each, with as many positions as the built-in voice is converted for."""
    recording: Path
    """Speech of a second or so."""
    earlier: Path
    """Its int8 alone: a bundle in whose place another one comes."""
    begun: Path
    """A folder of begun conversions of the checkpoint; see `begin`."""

    def path(self, name: str) -> Path:
        """One of them, or what is in it: "bundle", "begun/constants"."""
        first, _, below = name.partition("/")
        return Path(getattr(self, first)) / below


@dataclass(frozen=True)
class Scenario:
    """A command. Paths are relative to its folder; `home/` is what it writes for a user, `temporary/` its TMPDIR."""

    name: str
    arguments: Callable[[Materials], tuple[object, ...]]
    final: tuple[str, ...]
    """Patterns of the files that must be whole whenever they are there."""
    result: tuple[str, ...] = ()
    """Patterns of what a run that succeeds makes, equal each time."""
    saved: tuple[str, ...] = ()
    """Patterns of what an interrupted run may keep for the next one."""
    finished: tuple[str, ...] = ()
    """Patterns of what is never made twice; the first wildcard names the part. See `pieces`."""
    gathers: bool = False
    """Whether the finished parts go into the result, and are removed when it is there."""
    records: tuple[str, ...] = ()
    """Files that grow line by line, of which a killed run may leave the last line incomplete."""
    warm: bool = True
    """Whether the user's cache is filled."""
    converts: bool = False
    there: dict[str, str] = field(default_factory=dict)
    """Name of a folder that is there before the command runs → which of `Materials` it is a copy of, as of `path`."""
    never_gone: tuple[str, ...] = ()
    """Files of which one is always there; none of them need be if this is empty."""
    codes: tuple[int, ...] = (2,)
    """Exit codes of a failure."""
    named_by_content: tuple[str, ...] = ()
    """Patterns of files whose names follow from what no two conversions have in common."""
    done: str = ""
    """What it says when it runs again after it has succeeded; nothing if it succeeds again."""

    def prepare(self, folder: Path, materials: Materials) -> None:
        """Fill an empty folder with what is there before the command runs for the first time."""
        folder.mkdir(parents=True)
        (folder / "book.txt").write_text(BOOK, encoding="utf-8")
        (folder / "lines.txt").write_text("\n".join(LINES), encoding="utf-8")
        for name, material in self.there.items():
            shutil.copytree(materials.path(material), folder / name)
        if self.warm:
            shutil.copytree(materials.cache, folder / "home")
        else:
            (folder / "home").mkdir()
        (folder / "temporary").mkdir()

    def run(self, children: Children, folder: Path, materials: Materials, **what: object) -> Ended:
        """Run the command in its folder. what: as of `Case`."""
        case = Case(
            arguments=tuple(map(str, self.arguments(materials))),
            folder=folder,
            environment={"VOXCPM_COREML_CACHE": str(folder / "home"), "TMPDIR": str(folder / "temporary")},
            **what,  # type: ignore[arg-type]
        )
        return children.run(case)

    def half_files(self, folder: Path, whole: dict[str, str], before: dict[str, str]) -> list[str]:
        """The files under a final name that are neither whole nor as they were before."""
        found = files(folder)
        gone = self.never_gone and not any(path in found for path in self.never_gone)
        wrong = [f"gone: {self.never_gone[0]}"] if gone else []
        for path, digest in found.items():
            hidden = path.rpartition("/")[2].startswith(".") or path.endswith("/")
            saved = any(fnmatch(path, pattern) for pattern in self.saved)
            if hidden or saved or path in self.records or not any(fnmatch(path, each) for each in self.final):
                continue
            if digest not in (whole.get(path), before.get(path)):
                wrong.append(f"half a file: {path}")
        return wrong

    def leftovers(self, folder: Path, whole: dict[str, str], before: dict[str, str]) -> list[str]:
        """The files that are neither of a whole run, nor were there before, nor are saved for the next run."""
        return [
            f"left behind: {path}"
            for path in files(folder)
            if path not in whole
            and path not in before
            and not any(fnmatch(path, pattern) for pattern in (*self.saved, *self.named_by_content))
        ]

    def differences(self, folder: Path, whole: dict[str, str]) -> list[str]:
        """What differs from a whole run after the command has succeeded. A cache may have less."""
        now = files(folder)
        left = [
            f"left behind: {path}"
            for path in now.keys() - whole.keys()
            if not path.endswith("/") and not any(fnmatch(path, pattern) for pattern in self.named_by_content)
        ]
        return sorted(left) + self.missing(folder, whole)

    def missing(self, folder: Path, whole: dict[str, str]) -> list[str]:
        """The results that are not there, or are not those of a whole run."""
        now = files(folder)
        results = [path for path in whole if any(fnmatch(path, pattern) for pattern in self.result)]
        return [f"{'differs' if p in now else 'missing'}: {p}" for p in results if now.get(p) != whole[p]]

    def failed(self, ended: Ended, folder: Path, whole: dict[str, str]) -> list[str]:
        """What is wrong with the end of a run that nothing disturbs."""
        if ended.code == 0:
            return []
        is_done = self.done and self.done in ended.err and not self.differences(folder, whole)
        return [] if is_done else [f"exit code {ended.code}: {ended.err.strip()}"]

    def pieces(self, folder: Path) -> dict[str, int]:
        """The finished parts, by name, with the time at which each was made."""
        found = {}
        for pattern in self.finished:
            for path in folder.glob(pattern):
                # Temporary files of a tool are no parts.
                if path.parts[-2] != "temporary":
                    found["/".join(path.parts[-2:])] = path.stat().st_mtime_ns
        return found


def begin(whole: Any, folder: Path) -> None:
    """Make a folder of begun conversions, by what each of them lacks: one of `LACKING`, and nothing else.

    whole: the run of `convert` that nothing disturbed.
    """
    finished = [
        number
        for number, (kind, path) in enumerate(whole.calls)
        if kind == "rename" and fnmatch(path, ".bundle.partial/bundle/int8/[a-z]*.mlpackage")
    ]
    scenario, run = whole.scenario, folder / "run"
    scenario.prepare(run, whole.materials)
    ended = scenario.run(whole.children, run, whole.materials, call=finished[-1] + 1)
    assert ended.code == -9, ended.err
    unfinished = run / ".bundle.partial"
    shutil.rmtree(unfinished / "temporary")
    for lacking, parts in LACKING.items():
        shutil.copytree(unfinished, folder / lacking)
        for part in parts:
            missing = folder / lacking / "bundle" / part
            shutil.rmtree(missing) if missing.is_dir() else missing.unlink()


def lines_of(ended: Ended) -> list[str]:
    """What a failed command said beyond warnings, and beyond progress: lines with a time, or cut off before it."""
    lines = [line for line in ended.err.splitlines() if line and not line.startswith("warning: ")]
    return [line for line in lines if not re.search(r"( \d+:\d\d:\d\d|…)$", line)]


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            "generate",
            lambda given: (
                "generate",
                given.bundle,
                *SPEAKING,
                "--text-file",
                "book.txt",
                "--segment-tokens",
                8,
                "-o",
                "out/book.wav",
            ),
            final=("out/book.wav",),
            result=("out/book.wav",),
            saved=(
                "out/.book.wav.segments/*.segment",
                "out/.book.wav.segments/*.json",
                "out/.book.wav.discarded/*",
                "out/",
            ),
            finished=("out/.book.wav.segments/*.segment",),
            gathers=True,
        ),
        Scenario(
            "generate, empty cache",
            lambda given: (
                "generate",
                given.bundle,
                *SPEAKING,
                "--text",
                "Good morning.",
                "-o",
                "speech.flac",
            ),
            final=("speech.flac", "home/lowered/*"),
            result=("speech.flac",),
            saved=("home/*/",),
            warm=False,
        ),
        Scenario(
            "batch",
            lambda given: ("batch", given.bundle, *SPEAKING, "lines.txt", "-o", "spoken"),
            final=("spoken/*.wav", "spoken/spoken.jsonl"),
            result=("spoken/*.wav",),
            saved=("spoken/",),
            finished=("spoken/*.wav",),
            records=("spoken/spoken.jsonl",),
            codes=(1, 2),
        ),
        Scenario(
            "voices add",
            lambda given: (
                "voices",
                "add",
                "ada",
                given.bundle,
                "--precision",
                "int8",
                "--threads",
                "1",
                "--prompt",
                given.recording,
                "--prompt-text",
                "Good morning.",
                "--overwrite",
            ),
            final=("home/voices/*",),
            result=("home/voices/ada.voice",),
            saved=("home/voices/",),
        ),
        Scenario(
            "convert",
            lambda given: ("convert", given.checkpoint, *CONVERSION, "-o", "bundle"),
            final=("bundle/*",),
            result=("bundle/*",),
            done="bundle: already exists",
            saved=(".bundle.partial/*",),
            finished=(".bundle.partial/bundle/*/*.mlpackage", "bundle/*/*.mlpackage"),
            warm=False,
            converts=True,
        ),
        *(
            Scenario(
                f"convert, all but {lacking}",
                lambda given: ("convert", given.checkpoint, *CONVERSION, "-o", "bundle"),
                final=("bundle/*",),
                result=("bundle/*",),
                saved=(".bundle.partial/*",),
                warm=False,
                converts=True,
                there={".bundle.partial": f"begun/{lacking}"},
            )
            for lacking in LACKING
        ),
        Scenario(
            "convert --overwrite",
            lambda given: ("convert", given.checkpoint, *CONVERSION, "--overwrite", "-o", "bundle"),
            final=("bundle/*",),
            result=("bundle/*",),
            saved=(".bundle.partial/*",),
            finished=(".bundle.partial/bundle/*/*.mlpackage",),
            gathers=True,
            warm=False,
            converts=True,
            there={"bundle": "earlier", ".bundle.partial": f"begun/{RESIDUAL_LM_STEP}"},
            never_gone=("bundle/manifest.json", ".bundle.partial/replaced/manifest.json"),
        ),
    )
}
