"""One run over the lines of a batch: what is left to speak, speaking it, and the result of each line."""

from __future__ import annotations

import contextlib
import unicodedata
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import typer

from voxcpm_constants.errors import InputError, VoxCPMError, system_errors_as
from voxcpm_runtime.audio.files import check_output_path, write_audio
from voxcpm_runtime.commands.batch_lines import BatchLine, Failure
from voxcpm_runtime.commands.batch_record import RECORD_FILE, Record, SpokenLine
from voxcpm_runtime.commands.generate import spoken_line
from voxcpm_runtime.commands.status_line import Notes, progress_text, status_line
from voxcpm_runtime.speech.cancellation import Cancelled, CancelToken
from voxcpm_runtime.speech.jobs import current_job
from voxcpm_runtime.speech.progress import ProgressCallback
from voxcpm_runtime.speech.results import Speech
from voxcpm_runtime.storage.whole_file import make_folder
from voxcpm_runtime.voxcpm import VoxCPM


class BatchRun:
    """One run over a batch. A line that fails is reported and the others continue; finished files are recorded."""

    def __init__(self, folder: Path, bundle: str, *, shown: bool) -> None:
        """Open the folder's record. bundle: digest of the bundle. shown: whether to report success.

        Raises InputError for a folder that cannot be written to.
        """
        self.folder = folder
        self.failures: list[Failure] = []
        self._bundle, self._shown = bundle, shown
        self._record = Record(folder)
        self._spoken = self._skipped = 0

    def pending(self, lines: Iterable[BatchLine | Failure], *, overwrite: bool) -> list[BatchLine]:
        """The lines still to be spoken; failures are reported immediately."""
        pending = []
        for line in lines:
            if isinstance(line, Failure):
                self._fail(line)
                continue
            with self._going_on(line):
                if overwrite or not self._is_there(line):
                    pending.append(line)
                else:
                    self._skipped += 1
        return pending

    def speak(self, utterances: list[BatchLine], tts: VoxCPM, cancel: CancelToken) -> None:
        """Speak the lines, as many at a time as the bundle was converted for. If one fails, the others continue."""
        ready = []
        for utterance in utterances:
            with self._going_on(utterance):
                path = self.folder / utterance.output
                make_folder(path.parent)
                check_output_path(path)
                ready.append((utterance, utterance.arguments.digest(self._bundle)))
        lines = [utterance for utterance, _ in ready]
        with status_line("prefill …", shown=self._shown) as note, _warnings_as_lines(lines):
            asked = [
                replace(
                    utterance.arguments,
                    cancel=cancel,
                    progress=_reported(note, f"{place} of {len(ready)}, {utterance.output}"),
                )
                for place, utterance in enumerate(lines, start=1)
            ]
            for index, speech in tts.speak_each(asked):
                utterance, digest = ready[index]
                if isinstance(speech, Cancelled):
                    # So are all others that run: a cancelled line is left, not failed.
                    continue
                with self._going_on(utterance):
                    self._keep(utterance, digest, speech)

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

    def _is_there(self, utterance: BatchLine) -> bool:
        """Whether the line's file is there as it was made from this line; one of another size or line is made again.

        Raises InputError for a file that no batch made.
        """
        digest, path = utterance.arguments.digest(self._bundle), self.folder / utterance.output
        if not path.exists():
            return False
        recorded = self._record.entry(utterance.output)
        if recorded is None:
            raise InputError(
                f"{path} is there, but {RECORD_FILE} does not say what from; move it away, or give --overwrite"
            )
        return recorded.digest == digest and recorded.bytes in (None, path.stat().st_size)

    def _keep(self, utterance: BatchLine, digest: str, speech: Speech | VoxCPMError) -> None:
        if isinstance(speech, VoxCPMError):
            raise speech
        path = self.folder / utterance.output
        clipped = write_audio(path, speech.audio, speech.sample_rate)
        spoken = SpokenLine(
            line=utterance.line,
            output=utterance.output,
            digest=digest,
            seed=cast("int", speech.seed),
            seconds=round(speech.audio_seconds, 3),
            samples=len(speech.audio),
            bytes=path.stat().st_size,
            suspicious={segment.number: segment.reason for segment in speech.suspicious},
        )
        self._record.add(spoken)
        self._spoken += 1
        if self._shown:
            typer.echo(spoken_line(path, speech, clipped))

    @contextlib.contextmanager
    def _going_on(self, utterance: BatchLine) -> Iterator[None]:
        try:
            with system_errors_as(InputError):
                yield
        except VoxCPMError as error:
            self._fail(Failure(utterance.line, str(error)))

    def _fail(self, failure: Failure) -> None:
        self.failures.append(failure)
        typer.echo(str(failure), err=True)


def check_outputs(lines: Iterable[BatchLine | Failure]) -> None:
    """Raises InputError for two lines with the same file, also if they differ only in case or Unicode form."""
    first: dict[str, int] = {}
    for line in lines:
        if isinstance(line, BatchLine):
            earlier = first.setdefault(unicodedata.normalize("NFC", line.output).casefold(), line.line)
            if earlier != line.line:
                raise InputError(
                    f"lines {earlier} and {line.line} have the same output, {line.output}; give each its own"
                )


def output_folder(folder: str, source: str) -> Path:
    """The folder, created if needed. Raises InputError if that fails, and if the input is the folder's record."""
    path = Path(folder).expanduser()
    make_folder(path)
    if Path(source).expanduser().resolve() == (path / RECORD_FILE).resolve():
        raise InputError(f"{source}: a batch keeps its own record under this name; give the input another")
    return path


@contextlib.contextmanager
def _warnings_as_lines(utterances: Sequence[BatchLine]) -> Iterator[None]:
    """Print each warning with the line of its utterance, which is the one that the warning thread speaks."""

    def show(message: Warning | str, category: type[Warning], *_: object) -> None:
        if issubclass(category, UserWarning):
            typer.echo(f"line {utterances[current_job.get()].line}: warning: {message}", err=True)

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = show  # type: ignore[assignment]
        yield


def _reported(note: Notes, place: str) -> ProgressCallback:
    return lambda progress: note(f"{place}: {progress_text(progress)}")
