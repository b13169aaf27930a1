"""Where the lines of a batch are spoken: on this machine, or by another package's executor.

An executor is an entry point, found by its name, as commands are (`commands/cli.py`): the runtime knows no cluster.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import entry_points
from typing import Any, cast

from voxcpm_constants.errors import InputError, MissingExtraError, VoxCPMError, system_errors_as
from voxcpm_runtime.audio.files import audio_file
from voxcpm_runtime.bundle.opening import Bundle
from voxcpm_runtime.commands.batch_lines import BatchLine
from voxcpm_runtime.commands.shared_arguments import Engine, loaded
from voxcpm_runtime.commands.status_line import Notes, progress_text, speech_summary
from voxcpm_runtime.speech.arguments import Arguments, CancelToken
from voxcpm_runtime.speech.plan import plan
from voxcpm_runtime.speech.results import Progress
from voxcpm_runtime.voxcpm import VoxCPM

EXECUTOR_GROUP = "voxcpm_coreml.batch_executors"
"""Entry points that make executors: functions (cluster address, bundle as the user named it, Bundle, Engine)."""


@dataclass(frozen=True)
class Task:
    """A line that is still to be spoken."""

    line: BatchLine
    digest: str
    """SHA-256 over everything that determines the speech (`Arguments.digest`)."""

    def self_contained(self, bundle: Bundle) -> Arguments:
        """The line's arguments with the content of its recordings, for another machine.

        Raises InputError for recordings that cannot be used, with the same message as on this machine.
        """
        arguments = self.line.arguments
        recordings = arguments.recordings
        recordings.read(bundle.architecture, trimmed=arguments.options.trim_silence_vad)
        return replace(arguments, recordings=recordings.self_contained())


@dataclass(frozen=True)
class SpokenFile:
    """The speech of a line as the content of its file."""

    content: bytes
    facts: dict[str, Any]
    """For the record: seed, seconds, samples, and the suspicious segments, by number from 1, with the reason."""
    summary: str
    """What the command prints about it."""


Executor = Callable[
    [Iterator[Task], CancelToken, Notes, Callable[[int, str], None]],
    Iterator[tuple[Task, SpokenFile | VoxCPMError]],
]
"""executor(tasks, cancel, note, warn) yields each line with its file or its error, in the order in which they finish.

tasks: taken as they can be spoken; taking one may take time. cancel: stops all work; lines may then be left out or be
Cancelled. note: shows progress. warn: shows a warning about a line, by its number.
"""
ExecutorFactory = Callable[[str, str | None, Bundle, Engine], Executor]


def executor_factory(option: str) -> ExecutorFactory:
    """The entry point of an option of `batch`. Raises MissingExtraError if no installed package has it."""
    for entry in entry_points(group=EXECUTOR_GROUP, name=option):
        return cast("ExecutorFactory", entry.load())
    raise MissingExtraError(
        f'batch --{option} is not installed; install it with: pip install "voxcpm-coreml[{option}]"'
    )


def local_executor(bundle: Bundle, engine: Engine) -> Executor:
    """An executor on this machine, which loads the step models when there is a line to speak."""

    def execute(
        tasks: Iterator[Task], cancel: CancelToken, note: Notes, warn: Callable[[int, str], None]
    ) -> Iterator[tuple[Task, SpokenFile | VoxCPMError]]:
        ready = list(tasks)
        if not ready:
            return
        tts = loaded(bundle, engine, note)
        for index, task in enumerate(ready, start=1):
            if cancel.cancelled:
                return
            place = f"{index} of {len(ready)}, {task.line.output}"
            progress = partial(_note_progress, note, place)
            arguments = replace(task.line.arguments, cancel=cancel, progress=progress)
            yield task, spoken_file(tts, arguments, task.line.output, partial(warn, task.line.line))

    return execute


def _note_progress(note: Notes, place: str, progress: Progress) -> None:
    note(f"{place}: {progress_text(progress)}")


def spoken_file(
    tts: VoxCPM, arguments: Arguments, output: str, warn: Callable[[str], None]
) -> SpokenFile | VoxCPMError:
    """The file of an utterance, or its error. output: the file's name, whose suffix selects the format."""

    def show(message: Warning | str, category: type[Warning], *_: object) -> None:
        if issubclass(category, UserWarning):
            warn(str(message))

    try:
        with warnings.catch_warnings(), system_errors_as(InputError):
            warnings.simplefilter("always", UserWarning)
            warnings.showwarning = show  # type: ignore[assignment]
            speech = tts.speak_plan(plan(tts.bundle, arguments))
            content, clipped = audio_file(output, speech.audio, speech.sample_rate)
    except VoxCPMError as error:
        return error
    facts = {
        "seed": speech.seed,
        "seconds": round(speech.audio_seconds, 3),
        "samples": len(speech.audio),
        "suspicious": {segment.number: segment.reason for segment in speech.suspicious},
    }
    return SpokenFile(content, facts, speech_summary(speech, clipped))
