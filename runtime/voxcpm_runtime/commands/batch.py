"""`batch`: an audio file per line of a text or JSONL file; a second run skips finished lines."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

from voxcpm_constants.errors import (
    InputError,
    MissingExtraError,
    VoxCPMError,
    install_command,
    system_errors_as,
)
from voxcpm_constants.file_locks import lock_folder
from voxcpm_constants.json_files import parsed_json, printed_json
from voxcpm_constants.manifest import record_file, record_open_file
from voxcpm_constants.progress_lines import Notes, status_line
from voxcpm_constants.user_folders import user_path
from voxcpm_runtime.audio.files import check_output_path, write_audio, write_audio_file
from voxcpm_runtime.bundle.opening import Bundle
from voxcpm_runtime.commands.batch_lines import BatchLine, Failure, SpokenFile, read_lines, spoken_files
from voxcpm_runtime.commands.generate import interruptible
from voxcpm_runtime.commands.shared_arguments import (
    CheckpointArguments,
    Engine,
    Json,
    Quiet,
    VoiceArguments,
    input_file,
    load_voxcpm,
    open_with_engine,
    takes_groups,
)
from voxcpm_runtime.commands.status_line import clipped_text, progress_text
from voxcpm_runtime.options import GenerationOptions
from voxcpm_runtime.speech.plan import speech_digest
from voxcpm_runtime.speech.request import Cancelled, CancelToken, Request
from voxcpm_runtime.speech.results import Progress
from voxcpm_runtime.speech.splitting import parts_of
from voxcpm_runtime.storage.atomic_file import make_folder, refuse_inputs
from voxcpm_runtime.text.control import checked_control
from voxcpm_runtime.text.lexicon import lexicon_entries
from voxcpm_runtime.words.files import TIMESTAMP_ENDINGS

PARTIAL_FAILURE = 1  # Exit code if a line could not be spoken
_GROUPS = 8  # of lines that are planned before any of them is spoken, if some are spoken at once
RECORD_FILE = "spoken.jsonl"
"""One line of JSON per finished file, so that a later run can resume; the last line about a file counts."""

Warn = Callable[[int, str], None]
Executor = Callable[[Iterator[BatchLine], CancelToken, Notes, Warn], Iterator[tuple[BatchLine, Any]]]
"""executor(lines, cancel, note, warn) yields each line with its SpokenFile or VoxCPMError, in any order.

lines: consumed lazily; the next one may take time. cancel: stops all work; unfinished lines are left out or yield
Cancelled. note: shows progress. warn: shows a warning about a line, by number.
"""
EXECUTOR_GROUP = "voxcpm_coreml.batch_executors"
"""Entry points of other packages: functions (cluster address, bundle argument, Bundle, Engine) -> Executor."""


@takes_groups
def batch(
    *,
    bundle_and_input: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[BUNDLE] INPUT",
            help="A bundle, as for generate, and the input: .txt with one text per line, or .jsonl with one JSON "
            "object per line (text, output, seed, prompt, prompt_text, reference, voice, control, options); - "
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
        bool, typer.Option("--overwrite", help="Redo all lines, and replace even read-only files.")
    ] = False,
    seed: Annotated[
        int | None,
        typer.Option(help="Seed for lines without one. Default: random per line.", min=0),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Run on a Ray cluster: HOST:PORT of its head node, auto for the cluster running here, or local for "
            "a new one on this machine.",
        ),
    ] = None,
    together: Annotated[
        int,
        typer.Option(
            help="Speak this many lines at once, with the same samples as one by one; the bundle must have been "
            "converted with --batch.",
            min=1,
        ),
    ] = 1,
    timestamps: Annotated[
        str | None,
        typer.Option(
            metavar="json|srt|vtt",
            help="Next to each audio file, write the times of its words in this format.",
        ),
    ] = None,
    voice: VoiceArguments,
    options: GenerationOptions,
    engine: Engine,
    checkpoint: CheckpointArguments,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Generate one audio file per line of a file; after an interruption, run the same command to resume."""
    name, source = _bundle_and_input(bundle_and_input or [], source)
    ending = f".{timestamps}" if timestamps else ""
    if ending not in ("", *TIMESTAMP_ENDINGS):
        raise InputError(f"--timestamps: expected json, srt or vtt, got {timestamps}")
    defaults = Request(
        recordings=voice.recordings(), control=voice.control, lexicon=lexicon_entries(voice.lexicon), options=options,
        seed=seed,
    )  # fmt: skip
    # The cluster's machines may have more cores than this one.
    local_engine = engine if ray is None else replace(engine, threads=None)
    bundle = open_with_engine(name, local_engine, checkpoint=checkpoint)
    if checkpoint.model_path or checkpoint.hf_model_id:
        name = str(bundle.folder)
    together = bundle.together(together)
    local = partial(_local_executor, bundle, engine, together)
    executor = local if ray is None else _on_ray(ray, name, bundle, engine, together)
    # Fail early if the defaults are invalid.
    checked_control(defaults.control, bundle.architecture, continues=defaults.recordings.continues)
    defaults.recordings.read(bundle.architecture, trimmed=options.trim_silence_vad)
    lines = read_lines(source, defaults)
    path = user_path(folder)
    _check_outputs(lines, path, source, ending)
    make_folder(path)
    token = CancelToken()
    try:
        lock = lock_folder(path.resolve())
    except BlockingIOError:
        raise InputError(
            f"{path}: another batch is writing into this folder; wait, or choose another"
        ) from None
    try:
        run = _Run(path, bundle, overwrite=overwrite, quiet=quiet or as_json, timestamps=ending)
        with interruptible(token):
            try:
                run.speak(lines, executor, token)
            finally:
                run.report(len(lines), as_json=as_json)
    finally:
        lock.release()
    if token.cancelled:
        raise Cancelled("interrupted")
    if run.failures:
        raise typer.Exit(PARTIAL_FAILURE)


def _bundle_and_input(given: list[str], source: str | None) -> tuple[str | None, str]:
    given = given if source is None else [*given, source]
    if not 1 <= len(given) <= 2:
        got = f"got {', '.join(given) or 'neither'}"
        raise InputError(f"expected [BUNDLE] INPUT, where INPUT is a file or - for standard input; {got}")
    return (given[0] if len(given) == 2 else None), given[-1]


def _on_ray(address: str, name: str | None, bundle: Bundle, engine: Engine, together: int) -> Executor:
    for entry in entry_points(group=EXECUTOR_GROUP, name="ray"):
        return entry.load()(address, name, bundle, engine, together)
    raise MissingExtraError(f"batch --ray is not installed; install it with: {install_command('ray')}")


def _local_executor(
    bundle: Bundle, engine: Engine, together: int, lines: Iterator[BatchLine], cancel: CancelToken, note: Notes,
    warn: Warn,
) -> Iterator[tuple[BatchLine, SpokenFile | VoxCPMError]]:  # fmt: skip
    """The local executor; loads the step models only if there is a line to speak."""
    ready = list(lines)
    if not ready:
        return
    tts = load_voxcpm(bundle, engine, note)

    def show(place: str, progress: Progress) -> None:
        note(f"{place}: {progress_text(progress)}")

    for index, line in enumerate(ready):
        progress = partial(show, f"{index + 1} of {len(ready)}, {line.output}")
        ready[index] = replace(line, request=replace(line.request, cancel=cancel, progress=progress))
    # Of many lines those of similar length are spoken together.
    size = together * _GROUPS if together > 1 else 1
    for start in range(0, len(ready), size):
        if cancel.cancelled:
            return
        yield from spoken_files(tts, ready[start : start + size], warn, together)


def _check_outputs(lines: Sequence[BatchLine | Failure], folder: Path, source: str, timestamps: str) -> None:
    """Raises InputError if two lines have the same output (by links, case or Unicode form, too), or if an output or the
    record is also an input.
    """
    if user_path(source).resolve() == (folder / RECORD_FILE).resolve():
        raise InputError(f"{source}: a batch writes its own record under this name; rename the input")
    seen: dict[str, int] = {}
    for line in lines:
        if isinstance(line, BatchLine):
            path = folder / line.output
            for written in (path, path.with_suffix(timestamps) if timestamps else path):
                refuse_inputs(written, [input_file(source), *line.request.recordings.files()])
            name = unicodedata.normalize("NFC", os.path.realpath(written)).casefold()
            earlier = seen.setdefault(name, line.number)
            if earlier != line.number:
                raise InputError(
                    f"lines {earlier} and {line.number} have the same output, {line.output}; give each its own"
                )


class _Run:
    """One run over a batch. A failed line is reported, and the others continue; finished files are recorded."""

    def __init__(
        self, folder: Path, bundle: Bundle, *, overwrite: bool, quiet: bool, timestamps: str
    ) -> None:
        self.failures: list[Failure] = []
        self._folder, self._bundle, self._overwrite, self._quiet = folder, bundle, overwrite, quiet
        self._timestamps = timestamps
        self._spoken = self._skipped = 0
        # Opened for writing, to fail before any work if it cannot be recorded.
        with (folder / RECORD_FILE).open("ab+") as file:
            file.seek(0)
            recorded = file.read().splitlines()
        self._recorded: dict[str, dict[str, Any]] = {}
        self._own: set[str] = set()  # SHA-256 of all files of times that batches wrote here
        for entry in recorded:
            # A killed run may have left an incomplete line, which is ignored.
            with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
                document = parsed_json(entry)
                self._own.update(document.get("timestamps", {}).values())
                self._recorded[document["output"]] = document

    def speak(self, lines: Sequence[BatchLine | Failure], executor: Executor, cancel: CancelToken) -> None:
        """Speak the lines whose file is missing or out of date. Only this process writes files, not the executor."""
        with status_line("prefill …", shown=not self._quiet) as note:
            for line, result in executor(self._unfinished_lines(lines), cancel, note, _warn):
                if isinstance(result, Cancelled):
                    continue
                try:
                    if isinstance(result, VoxCPMError):
                        raise result
                    with system_errors_as(InputError):
                        clipped = self._write(line, result)
                except VoxCPMError as error:
                    self._fail(line.number, error)
                    continue
                self._spoken += 1
                if not self._quiet:
                    typer.echo(f"{self._folder / line.output}: {result.summary}{clipped_text(clipped)}")

    def report(self, lines: int, *, as_json: bool) -> None:
        left = lines - self._spoken - self._skipped - len(self.failures)
        if as_json:
            failed = [failure._asdict() for failure in sorted(self.failures)]
            counts = {"spoken": self._spoken, "skipped": self._skipped, "left": left}
            typer.echo(printed_json({**counts, "failed": failed}))
        if self._quiet:
            return
        typer.echo(
            f"{self._spoken} spoken, {self._skipped} skipped (already there), {len(self.failures)} failed"
            + (f", {left} left: run the same command to resume" if left else "")
        )
        for failure in sorted(self.failures):
            typer.echo(f"failed: {failure}", err=True)

    def _unfinished_lines(self, lines: Sequence[BatchLine | Failure]) -> Iterator[BatchLine]:
        for line in lines:
            if isinstance(line, Failure):
                self._fail(*line)
                continue
            try:
                with system_errors_as(InputError):
                    request = line.request
                    parts = parts_of(request.text or "", request) if request.options.markup else ()
                    digest = speech_digest(request, self._bundle, parts)
                    spoken = self._is_spoken(line.output, digest)
                    if self._is_timed(line.output) and spoken:
                        self._skipped += 1
                        continue
                    make_folder((self._folder / line.output).parent)
                    check_output_path(self._folder / line.output, overwrite=self._overwrite)
            except VoxCPMError as error:
                self._fail(line.number, error)
                continue
            if spoken and request.seed is None:  # only its times are missing
                request = replace(request, seed=self._recorded[line.output].get("seed"))
            yield replace(line, request=request, digest=digest, timestamps=self._timestamps)

    def _is_spoken(self, output: str, digest: str) -> bool:
        """Whether an earlier run wrote this file for these arguments. Raises InputError if the file is not recorded."""
        path, recorded = self._folder / output, self._recorded.get(output)
        if self._overwrite or not path.exists():
            return False
        if recorded is None:
            raise _foreign(path)
        return recorded.get("digest") == digest and recorded.get("sha256") == record_file(path).sha256

    def _is_timed(self, output: str) -> bool:
        """Whether the times of a spoken file are there, if wanted. Raises InputError if no batch wrote that file."""
        path = (self._folder / output).with_suffix(self._timestamps)
        if not self._timestamps or self._overwrite or not path.exists():
            return not self._timestamps
        if (found := record_file(path).sha256) not in self._own:
            raise _foreign(path)
        return self._recorded.get(output, {}).get("timestamps", {}).get(self._timestamps) == found

    def _write(self, line: BatchLine, spoken: SpokenFile) -> int:
        """Write a line's file, and its record just before the file appears. Returns the number of clipped samples.

        If the process is killed in between, the file is missing or an earlier one with a different SHA-256.
        """
        path, times = self._folder / line.output, spoken.timestamps
        recorded, timestamps = self._recorded.get(line.output, {}), {}

        def record(audio: BinaryIO) -> None:
            written = record_open_file(audio)
            if recorded.get("sha256") == written.sha256:
                timestamps.update(recorded.get("timestamps", {}))
            if times is not None:
                timestamps[line.timestamps] = hashlib.sha256(times).hexdigest()
            entry = {"line": line.number, "output": line.output, "digest": line.digest, **spoken.facts}
            entry |= {**written.model_dump(), "timestamps": timestamps}
            with (self._folder / RECORD_FILE).open("ab+") as file:
                # The last line may be incomplete after a killed run or a full disk.
                file.seek(max(file.seek(0, os.SEEK_END) - 1, 0))
                separator = b"" if file.read(1) in (b"", b"\n") else b"\n"
                file.write(separator + json.dumps(entry).encode() + b"\n")

        clipped = write_audio(
            path, spoken.audio, spoken.sample_rate, overwrite=self._overwrite, record=record
        )
        if times is not None:
            write_audio_file(path.with_suffix(line.timestamps), times, overwrite=self._overwrite)
        for ending in TIMESTAMP_ENDINGS:  # those of earlier speech do not fit
            other = path.with_suffix(ending)
            if ending not in timestamps and other.is_file() and record_file(other).sha256 in self._own:
                other.unlink()
        return clipped

    def _fail(self, number: int, reason: object) -> None:
        self.failures.append(Failure(number, str(reason)))
        typer.echo(str(self.failures[-1]), err=True)


def _foreign(path: Path) -> InputError:
    return InputError(f"{path} exists but is not in {RECORD_FILE}; move it, or use --overwrite")


def _warn(number: int, text: str) -> None:
    typer.echo(f"line {number}: warning: {text}", err=True)
