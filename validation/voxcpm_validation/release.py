"""A checkpoint's release: its bundle, converted, validated, measured, listened to and published, with one report.

    make bundle CHECKPOINT=openbmb/VoxCPM1.5        # python -m voxcpm_validation.release openbmb/VoxCPM1.5

Each step is a command in its own process, so a crash in Core ML ends only that step. The next run repeats a successful
step only if its command or the bundle has changed. The exit code is 10 plus the place of the first failed step.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from pydantic import TypeAdapter, ValidationError

from voxcpm_constants.errors import SYSTEM_ERRORS, InputError, system_reason
from voxcpm_constants.manifest import MANIFEST_FILE
from voxcpm_constants.user_folders import is_hub_id
from voxcpm_conversion.model_card import table
from voxcpm_runtime.doctor.report import this_machine
from voxcpm_runtime.storage.atomic_file import atomic_file, make_folder

# 0.5 GB, so that it fits into 7 GB of memory next to upstream's model.
_RECOGNISER = "Systran/faster-whisper-small"
_FIRST_CODE = 10
_PROGRAM = (sys.executable, "-m", "voxcpm_runtime.commands.cli")
_HUB = str(Path(sys.executable).with_name("hf"))
_LOG_LINES = 20


class Step(NamedTuple):
    """One command of a release, and the steps that must succeed before it."""

    command: tuple[str, ...]
    needs: tuple[str, ...] = ("convert",)


class Result(NamedTuple):
    """The last run of a step: its command, exit code (negative for a signal) and duration.

    bundle: SHA-256 of the bundle's manifest after it; empty if there was no bundle.
    """

    command: tuple[str, ...]
    bundle: str
    code: int
    seconds: float

    @property
    def outcome(self) -> str:
        """The outcome, for the report."""
        return f"failed with exit code {self.code}" if self.code else "done"


_RESULTS = TypeAdapter(dict[str, Result])


def steps(checkpoint: str, folder: Path, recogniser: str, sentences: int, publish: str) -> dict[str, Step]:
    """The steps of a release in `folder`, by name and in order. publish: hub id to upload to; empty: none.

    Raises InputError for an invalid hub id.
    """
    if publish and not is_hub_id(publish):
        raise InputError(f"{publish}: expected a hub id to upload to, organisation/name")
    bundle, fetched = str(folder / "bundle"), str(folder / "recogniser")
    upstream, fp16, int8 = ("--checkpoint", checkpoint), ("--precision", "fp16"), ("--precision", "int8")

    def ours(*arguments: str) -> tuple[str, ...]:
        return (*_PROGRAM, *arguments)

    chosen = {
        "convert": Step(ours("convert", checkpoint, "-o", bundle, *fp16, *int8, "--overwrite"), ()),
        "recogniser": Step((_HUB, "download", recogniser, "--local-dir", fetched), ()),
        "validate": Step(ours("validate", bundle, *upstream, "--report", str(folder / "validate"))),
        **{f"{c}-{p[1]}": Step(ours(c, bundle, *p)) for c in ("doctor", "benchmark") for p in (fp16, int8)},
    }
    english, chinese = ("--short-sentences",), ("--chinese", "--recogniser", fetched)
    for language, options, needs in (
        ("english", english, ("convert",)),
        ("chinese", chinese, ("convert", "recogniser")),
    ):
        for suffix, system in (("", ()), ("-upstream", (*upstream, "--precision", "none"))):
            extent = ("--sentences", str(sentences), "--report", str(folder / f"listen-{language}{suffix}"))
            heard = ours("listen", bundle, *options, *extent, *system)
            chosen[f"listen-{language}{suffix}"] = Step(heard, needs)
    return {**chosen, "publish": Step(ours("publish", bundle, publish), tuple(chosen))} if publish else chosen


def release(chosen: Mapping[str, Step], folder: Path) -> int:
    """Run the steps that have not succeeded yet, and write `report.md` after each. Returns the exit code.

    Raises InputError and OSError if the folder cannot be used.
    """
    make_folder(folder)
    record = folder / "steps.json"
    try:
        results = _RESULTS.validate_json(record.read_bytes()) if record.exists() else {}
    except ValidationError:
        raise InputError(f"{record}: damaged; delete it to run all steps again") from None
    done: dict[str, Result] = {}
    for name, step in chosen.items():
        if all(need in done and not done[need].code for need in step.needs):
            earlier = results.get(name)
            if earlier is None or not _is_current(name, step, earlier, folder):
                sys.stderr.write(f"{name} ... (log: {folder / name}.log)\n")
                results[name] = _run(name, step, folder)
                _write(record, _RESULTS.dump_json(results, indent=1))
            done[name] = results[name]
        sys.stderr.write(f"{name}: {done[name].outcome if name in done else 'not run'}\n")
        _write(folder / "report.md", "\n".join(_report(chosen, done, folder)).encode())
    sys.stderr.write(f"written: {folder / 'report.md'}\n")
    failed = (place for place, name in enumerate(chosen) if name in done and done[name].code)
    return next((_FIRST_CODE + place for place in failed), 0)


def _is_current(name: str, step: Step, earlier: Result, folder: Path) -> bool:
    """Whether an earlier run was a success of the same command with the bundle as it is now."""
    same = name == "recogniser" or (earlier.bundle != "" and earlier.bundle == _digest(folder))
    return same and earlier.code == 0 and earlier.command == step.command


def _digest(folder: Path) -> str:
    manifest = folder / "bundle" / MANIFEST_FILE
    return hashlib.sha256(manifest.read_bytes()).hexdigest() if manifest.is_file() else ""


def _run(name: str, step: Step, folder: Path) -> Result:
    began = time.monotonic()
    with (folder / f"{name}.txt").open("wb") as out, (folder / f"{name}.log").open("wb") as log:
        ended = subprocess.run(step.command, stdout=out, stderr=log, check=False)  # noqa: S603 - our own commands
    return Result(step.command, _digest(folder), ended.returncode, round(time.monotonic() - began, 1))


def _write(path: Path, content: bytes) -> None:
    with atomic_file(path) as file:
        file.write(content)


def _report(chosen: Mapping[str, Step], done: Mapping[str, Result], folder: Path) -> Iterator[str]:
    """The machine, a row per step, and what each step printed, in Markdown."""
    machine = {k: f"{v}".strip("{[]}").replace("'", "") for k, v in this_machine().items()}
    rows = [
        (name, *((done[name].outcome, f"{done[name].seconds:.0f}") if name in done else ("not run", "")))
        for name in chosen
    ]
    yield from (f"# {folder.name} for Core ML", "", *table(("machine", ""), machine.items()))
    yield from table(("step", "outcome", "seconds"), rows)
    for name, result in done.items():
        # Without the paths of this machine.
        command = (
            shlex.join(result.command).replace(shlex.join(_PROGRAM), "voxcpm-coreml").replace(_HUB, "hf")
        )
        yield f"## {name}\n\n`{command}`\n"
        printed = (folder / f"{name}.txt").read_text(encoding="utf-8").rstrip()
        if result.code in (0, 1) and (markdown := folder / name / "validation.md").exists():
            yield re.sub("^#", "###", markdown.read_text(encoding="utf-8"), flags=re.MULTILINE)
        elif printed:
            yield f"```\n{printed}\n```\n"
        if result.code:
            log = (folder / f"{name}.log").read_text(encoding="utf-8", errors="replace").splitlines()
            yield "\n".join((f"**{result.outcome}**\n", "```", *log[-_LOG_LINES:], "```\n"))


def main() -> int:
    """Release the checkpoint that the command line names. Returns the exit code."""
    parser = argparse.ArgumentParser(description="Convert, check, measure and publish in build/bundles/NAME.")
    parser.add_argument("checkpoint", help="hub id or folder")
    parser.add_argument(
        "--publish", default="", metavar="ORG/NAME", help="hub id to upload to; needs a token"
    )
    parser.add_argument(
        "--recogniser", default=_RECOGNISER, help="hub id of a multilingual Whisper for CTranslate2"
    )
    parser.add_argument("--sentences", type=int, default=10, help="sentences in each listening test")
    given = parser.parse_args()
    folder = Path("build/bundles") / Path(given.checkpoint).name
    try:
        return release(steps(folder=folder, **vars(given)), folder)
    except KeyboardInterrupt:
        parser.exit(130, "error: interrupted; the same command resumes\n")
    except (InputError, *SYSTEM_ERRORS) as error:
        parser.exit(2, f"error: {error if isinstance(error, InputError) else system_reason(error)}\n")


if __name__ == "__main__":
    sys.exit(main())
