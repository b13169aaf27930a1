"""The commands that are killed and whose calls to the system fail: what they are given, what they may leave, what they
have finished. `Whole` has a command's undisturbed run, with which each disturbed one is compared.
"""

import json
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

from robustness.commands import CommandEnded
from robustness.folder_contents import calls, files
from voxcpm_constants.manifest import package_path
from voxcpm_constants.step_models import RESIDUAL_LM_STEP
from voxcpm_constants.vectors import vectors_path

# Few Euler steps: speech only needs to be reproducible.
SPEAKING = (
    *("--precision", "int8", "--seed", "4", "--threads", "1", "--inference-timesteps", "2", "--no-retry"),
)
# For macOS 15 a language model's package is joined from one for each chunk.
CONVERSION = (
    *("--target", "macos15", "--precision", "int8", "--max-length", "64", "--quantize", "all"),
    *("--prefill-chunk", "1", "--prefill-chunk", "2"),
)
BEGUN = "convert, begun"


@dataclass(frozen=True)
class Materials:
    """Read-only inputs of the commands."""

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
    """A conversion of the checkpoint that lacks one step model; see `begin`."""


@dataclass(frozen=True)
class Scenario:
    """A command. Paths are relative to its folder; `home/` is what it writes for a user, `temporary/` its TMPDIR."""

    arguments: Callable[[Materials], tuple[object, ...]]
    final: tuple[str, ...]
    """Patterns of files that must be complete whenever they exist."""
    result: tuple[str, ...]
    """Patterns of a successful run's reproducible results."""
    saved: tuple[str, ...] = ()
    """Patterns of files that an interrupted run may keep for the next one."""
    finished: tuple[str, ...] = ()
    """Patterns of files that are never made twice."""
    gathers: bool = False
    """Whether finished parts become part of the result and are then removed."""
    records: tuple[str, ...] = ()
    """Files that grow line by line, of which a killed run may leave the last line incomplete."""
    warm: bool = True
    """Whether the user's cache is filled."""
    there: dict[str, str] = field(default_factory=dict)
    """Name of a folder that is there before the command runs → which of `Materials` it is a copy of."""
    never_gone: tuple[str, ...] = ()
    """Files of which one is always there."""
    codes: tuple[int, ...] = (2,)
    """Exit codes of a failure."""
    done: str = ""
    """The error of a second run after success; empty if it succeeds again."""


def _convert(*more):
    return lambda given: ("convert", given.checkpoint, *CONVERSION, *more, "-o", "bundle")


SCENARIOS = {
    "generate": Scenario(
        lambda given: (
            *("generate", given.bundle, *SPEAKING),
            *("--text-file", "book.txt", "--segment-tokens", 8, "-o", "out/book.wav"),
        ),
        final=("out/book.wav",),
        result=("out/book.wav",),
        saved=(
            *("out/.book.wav.segments/*.segment", "out/.book.wav.segments/*.json"),
            *("out/.book.wav.discarded/*", "out/"),
        ),
        finished=("out/.book.wav.segments/*.segment",),
        gathers=True,
    ),
    "generate, empty cache": Scenario(
        lambda given: ("generate", given.bundle, *SPEAKING, "--text", "Good morning.", "-o", "speech.flac"),
        final=("speech.flac", "home/lowered/*"),
        result=("speech.flac",),
        saved=("home/*/",),
        warm=False,
    ),
    "batch": Scenario(
        lambda given: ("batch", given.bundle, *SPEAKING, "lines.txt", "-o", "spoken"),
        final=("spoken/*.wav", "spoken/spoken.jsonl"),
        result=("spoken/*.wav",),
        saved=("spoken/",),
        finished=("spoken/*.wav",),
        records=("spoken/spoken.jsonl",),
        codes=(1, 2),
    ),
    "voices add": Scenario(
        lambda given: (
            *("voices", "add", "ada", given.bundle, "--precision", "int8", "--threads", "1"),
            *("--prompt", given.recording, "--prompt-text", "Good morning.", "--overwrite"),
        ),
        final=("home/voices/*",),
        result=("home/voices/ada.voice",),
        saved=("home/voices/",),
    ),
    "convert": Scenario(
        _convert(),
        final=("bundle/*",),
        result=("bundle/*",),
        done="bundle: already exists",
        saved=(".bundle.partial/*",),
        finished=(".bundle.partial/bundle/*/*.mlpackage", "bundle/*/*.mlpackage"),
        warm=False,
    ),
    BEGUN: Scenario(
        _convert(),
        final=("bundle/*",),
        result=("bundle/*",),
        saved=(".bundle.partial/*",),
        warm=False,
        there={".bundle.partial": "begun"},
    ),
    "convert --overwrite": Scenario(
        _convert("--overwrite"),
        final=("bundle/*",),
        result=("bundle/*",),
        saved=(".bundle.partial/*",),
        finished=(".bundle.partial/bundle/*/*.mlpackage",),
        gathers=True,
        warm=False,
        there={"bundle": "earlier", ".bundle.partial": "begun"},
        never_gone=("bundle/manifest.json", ".bundle.partial/replaced/manifest.json"),
    ),
}


def _matches(path, patterns):
    return any(fnmatch(path, pattern) for pattern in patterns)


class Whole:
    """A scenario's run that nothing disturbed, and others compared with it; each of these has a folder of its own."""

    def __init__(self, name, commands, materials, folder):
        self.name, self.scenario = name, SCENARIOS[name]
        self._commands, self._materials = commands, materials
        run, log = folder / "run", folder / "calls.txt"
        self.prepare(run)
        self.before, began = files(run), time.monotonic()
        ended = self.run(run, log=log)
        self.seconds = time.monotonic() - began
        assert ended.code == 0, ended.err
        self.files = files(run)
        self.calls = calls(log, run)
        """The kind and path of each call to the system."""

    def prepare(self, folder):
        """Make a new folder with what is there before the command runs for the first time."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "book.txt").write_text("Come in.\n\nGo out.\n\nSit down.\n\nGet up.", encoding="utf-8")
        (folder / "lines.txt").write_text("Yes.\nNo.\nOne.\nTwo.", encoding="utf-8")
        for name, material in self.scenario.there.items():
            shutil.copytree(getattr(self._materials, material), folder / name)
        if self.scenario.warm:
            shutil.copytree(self._materials.cache, folder / "home")
        else:
            (folder / "home").mkdir()
        (folder / "temporary").mkdir()

    def run(self, folder, **what):
        """Run the command in its folder. what: as of `commands.scene`."""
        environment = {"VOXCPM_COREML_CACHE": str(folder / "home"), "TMPDIR": str(folder / "temporary")}
        return command(self._commands, folder, self.scenario.arguments(self._materials), environment, **what)

    def half_files(self, folder):
        """Files under a final name that are neither complete nor unchanged."""
        scenario, found = self.scenario, files(folder)
        gone = scenario.never_gone and not any(path in found for path in scenario.never_gone)
        wrong = [f"gone: {scenario.never_gone[0]}"] if gone else []
        for path, digest in found.items():
            hidden = path.rpartition("/")[2].startswith(".") or path.endswith("/")
            if hidden or path in scenario.records or _matches(path, scenario.saved):
                continue
            if _matches(path, scenario.final) and digest not in (self.files.get(path), self.before.get(path)):
                wrong.append(f"half a file: {path}")
        return wrong

    def leftovers(self, folder):
        """The files that are neither of a whole run, nor were there before, nor are saved for the next run."""
        new = files(folder).keys() - self.files.keys() - self.before.keys()
        return [f"left behind: {path}" for path in sorted(new) if not _matches(path, self.scenario.saved)]

    def missing(self, folder):
        """Results that are missing or differ from a whole run's."""
        now = files(folder)
        results = [path for path in self.files if _matches(path, self.scenario.result)]
        return [
            f"{'differs' if p in now else 'missing'}: {p}" for p in results if now.get(p) != self.files[p]
        ]

    def differences(self, folder):
        """Differences from a whole run after success. A cache may have fewer files."""
        left = sorted(path for path in files(folder).keys() - self.files.keys() if not path.endswith("/"))
        return [f"left behind: {path}" for path in left] + self.missing(folder)

    def failed(self, ended, folder):
        """What is wrong with the outcome of an undisturbed run."""
        done = self.scenario.done
        if ended.code == 0 or (done and done in ended.err and not self.differences(folder)):
            return []
        return [f"exit code {ended.code}: {ended.err.strip()}"]

    def pieces(self, folder):
        """The finished parts, by name, with the time at which each was made."""
        found = [path for pattern in self.scenario.finished for path in folder.glob(pattern)]
        # Not a tool's temporary files.
        return {
            "/".join(path.parts[-2:]): path.stat().st_mtime_ns
            for path in found
            if path.parts[-2] != "temporary"
        }


def command(commands, folder, arguments, environment, **what):
    """Run one command in a folder."""
    given = {"arguments": [*map(str, arguments)], "folder": folder, "environment": environment, **what}
    ended = commands.run(given)
    assert ended.outcome == "ended", ended
    return CommandEnded(**json.loads(ended.detail))


def begin(convert, folder):
    """Make a conversion that lacks the residual language model and nothing else, from a killed one.

    Nearly all of a conversion's thousands of calls are those of its step models.
    """
    finished = [
        number
        for number, (kind, path) in enumerate(convert.calls)
        if kind == "rename" and fnmatch(path, ".bundle.partial/bundle/int8/[a-z]*.mlpackage")
    ]
    run = folder.with_name("interrupted")
    convert.prepare(run)
    ended = convert.run(run, call=finished[-1] + 1)
    assert ended.code == -9, ended.err
    (run / ".bundle.partial").rename(folder)
    shutil.rmtree(folder / "temporary")
    shutil.rmtree(folder / "bundle" / package_path("int8", RESIDUAL_LM_STEP))
    (folder / "bundle" / vectors_path(RESIDUAL_LM_STEP)).unlink()


def lines_of(ended):
    """A failed command's output without warnings and progress lines."""
    lines = [line for line in ended.err.splitlines() if line and not line.startswith("warning: ")]
    return [line for line in lines if not re.search(r"( \d+:\d\d:\d\d|…)$", line)]


def summary(name, outcomes, wrong):
    """Print the outcomes of runs, and fail if something is wrong."""
    print(f"{name}: {dict(outcomes)}")
    assert not wrong, "\n".join(wrong)
