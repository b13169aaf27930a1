"""`batch`: each line of a file is spoken into its own audio file; a second run skips finished lines."""

from __future__ import annotations

import contextlib
import hashlib
import os
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from voxcpm_constants.errors import InputError, VoxCPMError, system_errors_as
from voxcpm_constants.file_locks import lock_folder
from voxcpm_constants.user_folders import user_path
from voxcpm_runtime.audio.files import check_output_path, write_audio_file
from voxcpm_runtime.backends.choice import CPU_DEVICE
from voxcpm_runtime.commands.batch_execution import (
    Executor,
    LocalExecutor,
    SpokenFile,
    Task,
    executor_factory,
)
from voxcpm_runtime.commands.batch_lines import BatchLine, Defaults, Failure, Lines
from voxcpm_runtime.commands.batch_record import RECORD_FILE, Record, SpokenLine
from voxcpm_runtime.commands.engine import opened
from voxcpm_runtime.commands.generate import interruptible
from voxcpm_runtime.commands.parameters import takes_groups
from voxcpm_runtime.commands.shared_arguments import (
    CheckpointArguments,
    Engine,
    Quiet,
    VoiceArguments,
    input_file,
)
from voxcpm_runtime.commands.status_line import status_line
from voxcpm_runtime.options import GenerationOptions
from voxcpm_runtime.speech.cancellation import Cancelled, CancelToken
from voxcpm_runtime.storage.whole_file import make_folder, refuse_inputs

SOME_FAILED = 1
"""Exit code if a line could not be spoken."""


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
        bool, typer.Option("--overwrite", help="Speak lines again whose file exists, even a read-only one.")
    ] = False,
    seed: Annotated[
        int | None, typer.Option(help="Seed of lines without their own. Default: random for each line.")
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
    token = CancelToken()
    with contextlib.ExitStack() as stack:
        lines = stack.enter_context(contextlib.closing(Lines(source, defaults)))
        count = count_lines(lines, user_path(folder), source)
        path = _output_folder(folder, source)
        stack.enter_context(_locked(path))
        run = _Run(path, bundle.digest, overwrite=overwrite, quiet=quiet)
        executor = (
            LocalExecutor(bundle, engine)
            if make_executor is None
            else make_executor(ray or "", name, bundle, engine)
        )
        with interruptible(token):
            try:
                run.speak(lines, executor, token)
            finally:
                run.report(count)
    token.check()
    if run.failures:
        raise typer.Exit(SOME_FAILED)


def _bundle_and_input(given: list[str], source: str | None) -> tuple[str | None, str]:
    given = given if source is None else [*given, source]
    if not given:
        raise InputError("expected [BUNDLE] INPUT, where INPUT is a file or - for standard input; or --input")
    if len(given) > 2:
        raise InputError(f"expected a bundle and one input, got {len(given)}: {', '.join(given)}")
    return (given[0] if len(given) == 2 else None), given[-1]


class _Run:
    """One run over a batch. A line that fails is reported and the others continue; finished files are recorded."""

    def __init__(self, folder: Path, bundle: str, *, overwrite: bool, quiet: bool) -> None:
        """Open the folder's record. bundle: the digest of the bundle. Raises InputError if it is not writable."""
        self.failures: list[Failure] = []
        self._folder, self._bundle, self._overwrite, self._quiet = folder, bundle, overwrite, quiet
        self._record = Record(folder)
        self._spoken = self._skipped = 0

    def speak(self, lines: Iterable[BatchLine | Failure], executor: Executor, cancel: CancelToken) -> None:
        """Speak the lines whose file is missing or out of date. Only this process writes files."""
        with status_line("prefill …", shown=not self._quiet) as note:
            for task, result in executor(self._tasks(lines), cancel, note, _warn):
                if isinstance(result, Cancelled):
                    continue
                message = ""
                with self._failure_of(task.line):
                    message = self._write(task, result)
                # Outside the block above: a line whose message cannot be printed has not failed.
                if message and not self._quiet:
                    typer.echo(message)

    def report(self, lines: int) -> None:
        """Print how many of `lines` lines were spoken, skipped, failed and left, and repeat the failures."""
        if self._quiet:
            return
        left = lines - self._spoken - self._skipped - len(self.failures)
        typer.echo(
            f"{self._spoken} spoken, {self._skipped} skipped (already there), {len(self.failures)} failed"
            + (f", {left} left: the same command resumes" if left else "")
        )
        for failure in sorted(self.failures):
            typer.echo(f"failed: {failure}", err=True)

    def _tasks(self, lines: Iterable[BatchLine | Failure]) -> Iterator[Task]:
        for line in lines:
            if isinstance(line, Failure):
                self._fail(line)
            elif (task := self._task(line)) is not None:
                yield task

    def _task(self, line: BatchLine) -> Task | None:
        """The line as a task; None if its file is finished, or cannot be written."""
        with self._failure_of(line):
            task = Task(line, line.arguments.digest(self._bundle))
            if not self._overwrite and self._is_finished(task):
                self._skipped += 1
                return None
            path = self._folder / line.output
            make_folder(path.parent)
            check_output_path(path, overwrite=self._overwrite)
            return task
        return None

    def _is_finished(self, task: Task) -> bool:
        """Whether the line's file exists and was made from this line. Raises InputError if its origin is unknown."""
        path = self._folder / task.line.output
        if not path.exists():
            return False
        recorded = self._record.entry(task.line.output)
        if recorded is None:
            raise InputError(f"{path} exists but is not in {RECORD_FILE}; move it away, or give --overwrite")
        return recorded.digest == task.digest and recorded.describes(path)

    def _write(self, task: Task, result: SpokenFile | VoxCPMError) -> str:
        """Write a line's file and its record; returns the message about it."""
        if isinstance(result, VoxCPMError):
            raise result
        path = self._folder / task.line.output
        entry = SpokenLine(
            line=task.line.line,
            output=task.line.output,
            digest=task.digest,
            seed=result.seed,
            seconds=round(result.audio_seconds, 3),
            samples=result.samples,
            bytes=len(result.content),
            sha256=hashlib.sha256(result.content).hexdigest(),
            suspicious=result.suspicious,
        )
        write_audio_file(
            path, result.content, overwrite=self._overwrite, record=lambda: self._record.add(entry)
        )
        self._spoken += 1
        return f"{path}: {result.summary}"

    @contextlib.contextmanager
    def _failure_of(self, line: BatchLine) -> Iterator[None]:
        """Report an error in the block as a failure of the line."""
        try:
            with system_errors_as(InputError):
                yield
        except VoxCPMError as error:
            self._fail(Failure(line.line, str(error)))

    def _fail(self, failure: Failure) -> None:
        self.failures.append(failure)
        typer.echo(str(failure), err=True)


def count_lines(lines: Iterable[BatchLine | Failure], folder: Path, source: str) -> int:
    """The number of lines. folder: where the output goes. source: the input.

    Raises InputError if two lines have the same file, also through links and if the names differ only in case or
    Unicode form, and if a line's file is the input or one of its own recordings.
    """
    count = 0
    # Digests of the names, which may be long and many.
    seen: dict[bytes, int] = {}
    for line in lines:
        count += 1
        if isinstance(line, BatchLine):
            path = folder / line.output
            refuse_inputs(path, [input_file(source), *line.arguments.recordings.files()])
            name = unicodedata.normalize("NFC", os.path.realpath(path)).casefold()
            digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).digest()
            earlier = seen.setdefault(digest, line.line)
            if earlier != line.line:
                raise InputError(
                    f"lines {earlier} and {line.line} have the same output, {line.output}; give each its own"
                )
    return count


def _output_folder(folder: str, source: str) -> Path:
    """The folder, created if needed. Raises InputError if that fails, and if the input is the folder's record."""
    path = user_path(folder)
    make_folder(path)
    if user_path(source).resolve() == (path / RECORD_FILE).resolve():
        raise InputError(f"{source}: a batch writes its own record under this name; rename the input")
    return path


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock the folder against a second batch, which would speak every line again. Raises InputError if it is locked."""
    try:
        lock = lock_folder(folder.resolve())
    except BlockingIOError:
        raise InputError(
            f"{folder}: another batch is writing into this folder; wait for it, or choose another folder"
        ) from None
    try:
        yield
    finally:
        lock.release()


def _warn(line: int, text: str) -> None:
    typer.echo(f"line {line}: warning: {text}", err=True)
