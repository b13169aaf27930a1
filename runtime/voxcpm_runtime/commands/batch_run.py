"""One run over the lines of a batch: what is left to speak, speaking it, and the result of each line."""

from __future__ import annotations

import contextlib
import hashlib
import os
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path

import typer

from voxcpm_constants.errors import InputError, VoxCPMError, system_errors_as
from voxcpm_constants.file_locks import lock_folder
from voxcpm_constants.user_folders import user_path
from voxcpm_runtime.audio.files import check_output_path, write_audio_file
from voxcpm_runtime.commands.batch_execution import Executor, SpokenFile, Task
from voxcpm_runtime.commands.batch_lines import BatchLine, Failure
from voxcpm_runtime.commands.batch_record import RECORD_FILE, Record, SpokenLine
from voxcpm_runtime.commands.generate import spoken_line
from voxcpm_runtime.commands.shared_arguments import input_file
from voxcpm_runtime.commands.status_line import status_line
from voxcpm_runtime.speech.cancellation import Cancelled, CancelToken
from voxcpm_runtime.storage.whole_file import make_folder, refuse_inputs


class BatchRun:
    """One run over a batch. A line that fails is reported and the others continue; finished files are recorded."""

    def __init__(self, folder: Path, bundle: str, *, overwrite: bool, shown: bool) -> None:
        """Open the folder's record. bundle: digest of the bundle. overwrite: speak also what is there already, and
        replace read-only files. shown: whether to report success.

        Raises InputError for a folder that cannot be written to.
        """
        self.folder = folder
        self.failures: list[Failure] = []
        self._bundle, self._overwrite, self._shown = bundle, overwrite, shown
        self._record = Record(folder)
        self._spoken = self._skipped = 0

    def speak(
        self,
        lines: Iterable[BatchLine | Failure],
        executor: Executor,
        cancel: CancelToken,
    ) -> None:
        """Speak the lines that are not there yet. If one fails, the others continue; failures are reported at once.

        All files are written here, whole, wherever they are spoken.
        """
        with status_line("prefill …", shown=self._shown) as note:
            for task, result in executor(self._tasks(lines), cancel, note, _warn):
                if isinstance(result, Cancelled):
                    # So are all others that run: a cancelled line is left, not failed.
                    continue
                kept = ""
                with self._going_on(task.line):
                    kept = self._keep(task, result)
                # Not within that: if it cannot be printed, the line is spoken all the same.
                if kept and self._shown:
                    typer.echo(kept)

    def report(self, lines: int) -> None:
        """Print how many of `lines` lines were spoken, skipped, failed and left, and the failures again."""
        if not self._shown:
            return
        left = lines - self._spoken - self._skipped - len(self.failures)
        typer.echo(
            f"{self._spoken} spoken, {self._skipped} skipped (already there), {len(self.failures)} failed"
            + (f", {left} left: the same command resumes" if left else "")
        )
        for failure in sorted(self.failures):
            typer.echo(f"failed: {failure}", err=True)

    def _tasks(self, lines: Iterable[BatchLine | Failure]) -> Iterator[Task]:
        """The lines still to be spoken, whose files can be written."""
        for line in lines:
            if isinstance(line, Failure):
                self._fail(line)
            elif (task := self._task(line)) is not None:
                yield task

    def _task(self, line: BatchLine) -> Task | None:
        """The line as a task; None if it has failed, or its file is there."""
        with self._going_on(line):
            task = Task(line, line.arguments.digest(self._bundle))
            if not self._overwrite and self._is_there(task):
                self._skipped += 1
                return None
            path = self.folder / line.output
            make_folder(path.parent)
            check_output_path(path, overwrite=self._overwrite)
            return task
        return None

    def _is_there(self, task: Task) -> bool:
        """Whether the line's file is there as it was made from this line; one of another content or line is made again.

        Raises InputError for a file that no batch made.
        """
        output = task.line.output
        path = self.folder / output
        if not path.exists():
            return False
        recorded = self._record.entry(output)
        if recorded is None:
            raise InputError(
                f"{path} is there, but {RECORD_FILE} does not say what from; move it away, or give --overwrite"
            )
        return recorded.digest == task.digest and recorded.describes(path)

    def _keep(self, task: Task, result: SpokenFile | VoxCPMError) -> str:
        """Write a line's file and its record; what to say of it."""
        if isinstance(result, VoxCPMError):
            raise result
        path = self.folder / task.line.output
        spoken = SpokenLine(
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
            path, result.content, overwrite=self._overwrite, record=lambda: self._record.add(spoken)
        )
        self._spoken += 1
        return spoken_line(path, result, result.clipped)

    @contextlib.contextmanager
    def _going_on(self, line: BatchLine) -> Iterator[None]:
        try:
            with system_errors_as(InputError):
                yield
        except VoxCPMError as error:
            self._fail(Failure(line.line, str(error)))

    def _fail(self, failure: Failure) -> None:
        self.failures.append(failure)
        typer.echo(str(failure), err=True)


def count_lines(lines: Iterable[BatchLine | Failure], folder: Path, source: str) -> int:
    """The number of lines. folder: of the output. source: the input.

    Raises InputError for two lines with the same file, also through links and if they differ only in case or Unicode
    form, and for one whose file is the input or one of its own recordings.
    """
    count = 0
    # A digest of each name, as names may be long and many.
    first: dict[bytes, int] = {}
    for line in lines:
        count += 1
        if isinstance(line, BatchLine):
            path = folder / line.output
            refuse_inputs(path, [input_file(source), *line.arguments.recordings.files()])
            name = unicodedata.normalize("NFC", os.path.realpath(path)).casefold()
            digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).digest()
            earlier = first.setdefault(digest, line.line)
            if earlier != line.line:
                raise InputError(
                    f"lines {earlier} and {line.line} have the same output, {line.output}; give each its own"
                )
    return count


def output_folder(folder: str, source: str) -> Path:
    """The folder, created if needed. Raises InputError if that fails, and if the input is the folder's record."""
    path = user_path(folder)
    make_folder(path)
    if user_path(source).resolve() == (path / RECORD_FILE).resolve():
        raise InputError(f"{source}: a batch keeps its own record under this name; give the input another")
    return path


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """A context in which no other batch speaks into the folder. Raises InputError while one does.

    Two that begin together would both find that nothing is there, and speak every line twice.
    """
    try:
        # Where a link leads: by its own name it is no folder that could be locked.
        lock = lock_folder(folder.resolve())
    except BlockingIOError:
        raise InputError(
            f"{folder}: another batch is speaking into this folder; wait for it, or choose another folder"
        ) from None
    try:
        yield
    finally:
        lock.release()


def _warn(line: int, text: str) -> None:
    typer.echo(f"line {line}: warning: {text}", err=True)
