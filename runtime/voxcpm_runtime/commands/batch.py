"""`batch`: each line of a file is spoken into its own audio file; a second run skips finished lines."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from voxcpm_constants.errors import InputError, VoxCPMError, system_errors_as
from voxcpm_constants.file_locks import lock_folder
from voxcpm_constants.json_files import parsed_json
from voxcpm_constants.manifest import record_file
from voxcpm_constants.user_folders import user_path
from voxcpm_runtime.audio.files import check_output_path, write_audio_file
from voxcpm_runtime.backends.choice import CPU_DEVICE
from voxcpm_runtime.commands.batch_lines import (
    BatchLine,
    Defaults,
    Executor,
    Failure,
    SpokenFile,
    Task,
    executor_factory,
    local_executor,
    read_lines,
)
from voxcpm_runtime.commands.generate import interruptible
from voxcpm_runtime.commands.shared_arguments import (
    CheckpointArguments,
    Engine,
    Quiet,
    VoiceArguments,
    input_file,
    opened,
    takes_groups,
)
from voxcpm_runtime.commands.status_line import status_line
from voxcpm_runtime.options import GenerationOptions
from voxcpm_runtime.speech.arguments import Cancelled, CancelToken
from voxcpm_runtime.storage.whole_file import make_folder, refuse_inputs

SOME_FAILED = 1
"""Exit code if a line could not be spoken."""
RECORD_FILE = "spoken.jsonl"
"""From which line of a batch each file in the folder was made, so that a later run can resume."""


@takes_groups()
def batch(
    *,
    bundle_and_input: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[BUNDLE] INPUT",
            help="A bundle, as for generate, and the input: .txt with a text on each line, or .jsonl with a JSON "
            "object on each line (text, output, seed, prompt, prompt_text, reference, voice, control, options); - "
            "reads standard input.",
        ),
    ] = None,
    source: Annotated[
        str | None, typer.Option("--input", "-i", help="The input file, instead of the argument INPUT.")
    ] = None,
    folder: Annotated[
        str, typer.Option("--output", "--output-dir", "-o", "-od", help="Folder for the audio files.")
    ],
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Speak all lines again, and replace even read-only files.")
    ] = False,
    seed: Annotated[
        int | None,
        typer.Option(help="Seed of lines without one. Default: random for each line.", min=0),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Speak on all machines of a Ray cluster: HOST:PORT of its head, auto for the cluster running here, "
            "or local for a new one on this machine.",
        ),
    ] = None,
    voice: VoiceArguments,
    options: GenerationOptions,
    engine: Engine,
    checkpoint: CheckpointArguments,
    quiet: Quiet = False,
) -> None:
    """Speak each line of a file into its own audio file; after an interruption the same command resumes."""
    name, source = _bundle_and_input(bundle_and_input or [], source)
    make_executor = None if ray is None else executor_factory("ray")
    recordings = voice.recordings()
    # The cluster's machines may have devices that this one lacks.
    local_engine = engine if ray is None else replace(engine, device=CPU_DEVICE, threads=None)
    bundle = opened(name, local_engine, checkpoint=checkpoint)
    defaults = Defaults(bundle.architecture, recordings, voice.control, seed, options)
    defaults.check()
    lines = read_lines(source, defaults)
    path = user_path(folder)
    _check_outputs(lines, path, source)
    make_folder(path)
    token = CancelToken()
    try:
        lock = lock_folder(path.resolve())
    except BlockingIOError:
        raise InputError(
            f"{path}: another batch is writing into this folder; wait for it, or choose another folder"
        ) from None
    try:
        run = _Run(path, bundle.digest, overwrite=overwrite, quiet=quiet)
        executor = (
            local_executor(bundle, engine)
            if make_executor is None
            else make_executor(ray or "", name, bundle, engine)
        )
        with interruptible(token):
            try:
                run.speak(lines, executor, token)
            finally:
                run.report(len(lines))
    finally:
        lock.release()
    if token.cancelled:
        raise Cancelled("interrupted")
    if run.failures:
        raise typer.Exit(SOME_FAILED)


def _bundle_and_input(given: list[str], source: str | None) -> tuple[str | None, str]:
    given = given if source is None else [*given, source]
    if not given:
        raise InputError("expected [BUNDLE] INPUT, where INPUT is a file or - for standard input; or --input")
    if len(given) > 2:
        raise InputError(f"expected a bundle and one input, got {len(given)}: {', '.join(given)}")
    return (given[0] if len(given) == 2 else None), given[-1]


def _check_outputs(lines: Sequence[BatchLine | Failure], folder: Path, source: str) -> None:
    """Raises InputError if two lines have the same file (also by links, case or Unicode form), or if a line's file or
    the record is an input.
    """
    if user_path(source).resolve() == (folder / RECORD_FILE).resolve():
        raise InputError(f"{source}: a batch writes its own record under this name; rename the input")
    seen: dict[str, int] = {}
    for line in lines:
        if isinstance(line, BatchLine):
            path = folder / line.output
            refuse_inputs(path, [input_file(source), *line.arguments.recordings.files()])
            name = unicodedata.normalize("NFC", os.path.realpath(path)).casefold()
            earlier = seen.setdefault(name, line.line)
            if earlier != line.line:
                raise InputError(
                    f"lines {earlier} and {line.line} have the same output, {line.output}; give each its own"
                )


class _Record:
    """The record of a folder: a line of JSON for each spoken file; the last one about a file counts.

    A line is written just before its file appears. If the process is killed in between, the file is missing or an
    earlier one with a different SHA-256.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / RECORD_FILE
        # Opened for writing now, so that nothing is spoken that cannot be recorded.
        with self._path.open("ab+") as file:
            file.seek(0)
            lines = file.read().splitlines()
        self.entries: dict[str, dict[str, Any]] = {}
        for line in lines:
            # A killed run may have left an incomplete line, whose file counts as not on record.
            with contextlib.suppress(ValueError, KeyError, TypeError):
                entry = parsed_json(line)
                self.entries[entry["output"]] = entry

    def add(self, entry: dict[str, Any]) -> None:
        with self._path.open("ab+") as file:
            # After a line that a killed run or a full disk has cut off.
            file.seek(max(file.seek(0, os.SEEK_END) - 1, 0))
            separator = b"" if file.read(1) in (b"", b"\n") else b"\n"
            file.write(separator + json.dumps(entry).encode() + b"\n")
        self.entries[entry["output"]] = entry


class _Run:
    """One run over a batch. A line that fails is reported and the others continue; finished files are recorded."""

    def __init__(self, folder: Path, bundle: str, *, overwrite: bool, quiet: bool) -> None:
        self.failures: list[Failure] = []
        self._folder, self._bundle, self._overwrite, self._quiet = folder, bundle, overwrite, quiet
        self._record = _Record(folder)
        self._spoken = self._skipped = 0

    def speak(self, lines: Sequence[BatchLine | Failure], executor: Executor, cancel: CancelToken) -> None:
        """Speak the lines whose file is missing or out of date. Only this process writes files."""
        with status_line("prefill …", shown=not self._quiet) as note:
            for task, result in executor(self._tasks(lines), cancel, note, _warn):
                if isinstance(result, VoxCPMError):
                    if not isinstance(result, Cancelled):
                        self._fail(Failure(task.line.line, str(result)))
                    continue
                spoken = self._spoken
                with self._failure_of(task.line):
                    self._write(task, result)
                    self._spoken += 1
                # Outside the block above: a line whose message cannot be printed has not failed.
                if self._spoken > spoken and not self._quiet:
                    typer.echo(f"{self._folder / task.line.output}: {result.summary}")

    def report(self, lines: int) -> None:
        if self._quiet:
            return
        left = lines - self._spoken - self._skipped - len(self.failures)
        typer.echo(
            f"{self._spoken} spoken, {self._skipped} skipped (already there), {len(self.failures)} failed"
            + (f", {left} left: the same command resumes" if left else "")
        )
        for failure in sorted(self.failures):
            typer.echo(f"failed: {failure}", err=True)

    def _tasks(self, lines: Sequence[BatchLine | Failure]) -> Iterator[Task]:
        for line in lines:
            if isinstance(line, Failure):
                self._fail(line)
                continue
            with self._failure_of(line):
                path, digest = self._folder / line.output, line.arguments.digest(self._bundle)
                if path.exists() and not self._overwrite:
                    recorded = self._record.entries.get(line.output)
                    if recorded is None:
                        raise InputError(
                            f"{path} exists but is not in {RECORD_FILE}; move it away, or give --overwrite"
                        )
                    sha256 = recorded.get("sha256")  # None in a record of an earlier release
                    if recorded.get("digest") == digest and sha256 in (None, record_file(path).sha256):
                        self._skipped += 1
                        continue
                make_folder(path.parent)
                check_output_path(path, overwrite=self._overwrite)
                yield Task(line, digest)

    def _write(self, task: Task, spoken: SpokenFile) -> None:
        entry = {
            "line": task.line.line,
            "output": task.line.output,
            "digest": task.digest,
            **spoken.facts,
            "bytes": len(spoken.content),
            "sha256": hashlib.sha256(spoken.content).hexdigest(),
        }
        path = self._folder / task.line.output
        write_audio_file(
            path, spoken.content, overwrite=self._overwrite, record=lambda: self._record.add(entry)
        )

    @contextlib.contextmanager
    def _failure_of(self, line: BatchLine) -> Iterator[None]:
        try:
            with system_errors_as(InputError):
                yield
        except VoxCPMError as error:
            self._fail(Failure(line.line, str(error)))

    def _fail(self, failure: Failure) -> None:
        self.failures.append(failure)
        typer.echo(str(failure), err=True)


def _warn(line: int, text: str) -> None:
    typer.echo(f"line {line}: warning: {text}", err=True)
