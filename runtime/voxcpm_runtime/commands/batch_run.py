"""One run over the lines of a batch: what is left to speak, speaking it, and what came of each line."""

from __future__ import annotations

import contextlib
import unicodedata
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import cast

import typer

from voxcpm_constants.errors import InputError, VoxCPMError
from voxcpm_runtime.audio_file import check_output_path, write_audio
from voxcpm_runtime.commands.opening import progress_text, status_line
from voxcpm_runtime.commands.speak import spoken_line
from voxcpm_runtime.commands.spoken import RECORD_FILE, Record, Spoken
from voxcpm_runtime.commands.utterances import Failure, Utterance
from voxcpm_runtime.voxcpm import VoxCPM


class BatchRun:
    """Goes on after a line that fails; a file appears when it is whole, and on record right after."""

    def __init__(self, folder: Path, bundle: str, *, shown: bool) -> None:
        """folder: of the audio files. bundle: digest of what is spoken with. shown: whether to tell of success.

        Raises InputError for a folder that cannot be written to.
        """
        self.folder = folder
        self.failures: list[Failure] = []
        self._bundle, self._shown = bundle, shown
        self._record = Record(folder)
        self._spoken = self._skipped = 0

    def pending(self, lines: Iterable[Utterance | Failure], *, overwrite: bool) -> list[Utterance]:
        """The lines still to be spoken; those that cannot be are told of at once."""
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

    def speak(self, utterances: list[Utterance], tts: VoxCPM) -> None:
        """Speak them in turn; what one of them cannot do, the rest may."""
        for place, utterance in enumerate(utterances, start=1):
            with self._going_on(utterance), _warnings_of(utterance):
                self._speak(utterance, tts, f"{place} of {len(utterances)}, {utterance.output}")

    def tell(self, lines: int) -> None:
        """Of so many lines how many came to what, and the failures again."""
        if not self._shown:
            return
        left = lines - self._spoken - self._skipped - len(self.failures)
        typer.echo(
            f"{self._spoken} spoken, {self._skipped} skipped (already there), {len(self.failures)} failed"
            + (f", {left} left: the same command goes on" if left else "")
        )
        for failure in sorted(self.failures):
            typer.echo(f"failed: {failure}", err=True)

    def _is_there(self, utterance: Utterance) -> bool:
        """Whether its file was made from this line; one made from another line of a batch is to be made again.

        Raises InputError for a file that no batch made.
        """
        digest, path = utterance.digest(self._bundle), self.folder / utterance.output
        if not path.exists():
            return False
        recorded = self._record.digest(utterance.output)
        if recorded is None:
            raise InputError(
                f"{path} is there, but {RECORD_FILE} does not say what from; move it away, or give --overwrite"
            )
        return recorded == digest

    def _speak(self, utterance: Utterance, tts: VoxCPM, place: str) -> None:
        digest, path = utterance.digest(self._bundle), self.folder / utterance.output
        _make_folder(path.parent)
        check_output_path(path)
        with status_line(f"{place} …", shown=self._shown) as note:
            speech = tts.speak(
                utterance.text,
                utterance.prompt,
                utterance.prompt_text,
                utterance.reference,
                seed=utterance.seed,
                progress=lambda progress: note(f"{place}: {progress_text(progress)}"),
                **utterance.options,
            )
        write_audio(path, speech.audio, speech.sample_rate)
        spoken = Spoken(
            line=utterance.line,
            output=utterance.output,
            digest=digest,
            seed=cast("int", speech.seed),
            seconds=round(speech.audio_seconds, 3),
            samples=len(speech.audio),
        )
        self._record.add(spoken)
        self._spoken += 1
        if self._shown:
            typer.echo(spoken_line(path, speech))

    @contextlib.contextmanager
    def _going_on(self, utterance: Utterance) -> Iterator[None]:
        try:
            yield
        except VoxCPMError as error:
            self._fail(Failure(utterance.line, str(error)))

    def _fail(self, failure: Failure) -> None:
        self.failures.append(failure)
        typer.echo(str(failure), err=True)


def check_outputs(lines: Iterable[Utterance | Failure]) -> None:
    """Raises InputError for two lines with one file, even if only a file system that ignores case says so."""
    first: dict[str, int] = {}
    for line in lines:
        if isinstance(line, Utterance):
            earlier = first.setdefault(unicodedata.normalize("NFC", line.output).casefold(), line.line)
            if earlier != line.line:
                raise InputError(
                    f"lines {earlier} and {line.line} have the same output, {line.output}; give each its own"
                )


def output_folder(folder: str, source: str) -> Path:
    """The folder, made where it is not there yet. Raises InputError, also for an input that is its record."""
    path = Path(folder).expanduser()
    _make_folder(path)
    if Path(source).expanduser().resolve() == (path / RECORD_FILE).resolve():
        raise InputError(f"{source}: a batch keeps its own record under this name; give the input another")
    return path


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{path}: the folder cannot be made ({error.strerror or error})") from None


@contextlib.contextmanager
def _warnings_of(utterance: Utterance) -> Iterator[None]:
    """Warnings as lines that say which utterance they are of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    for warning in caught:
        if issubclass(warning.category, UserWarning):
            typer.echo(f"line {utterance.line}: warning: {warning.message}", err=True)
