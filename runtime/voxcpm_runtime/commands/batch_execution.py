"""Where the lines of a batch are spoken: on this machine, or by another package's executor.

An executor is an entry point, found by its name, as commands are (`commands/cli.py`): the runtime knows no cluster.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from typing import Protocol, cast

from voxcpm_constants.errors import MissingExtraError, VoxCPMError
from voxcpm_runtime.audio.files import audio_file
from voxcpm_runtime.bundle.opening import Bundle
from voxcpm_runtime.commands.batch_lines import BatchLine
from voxcpm_runtime.commands.engine import loaded
from voxcpm_runtime.commands.shared_arguments import Engine
from voxcpm_runtime.commands.status_line import Notes, progress_text, speech_summary
from voxcpm_runtime.speech.arguments import Arguments
from voxcpm_runtime.speech.cancellation import CancelToken
from voxcpm_runtime.speech.results import Speech
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
    """The speech of a line as the content of its file, and the facts for its record."""

    content: bytes
    seed: int
    audio_seconds: float
    samples: int
    suspicious: dict[int, str]
    """The segments, by number from 1, that are suspicious in every attempt, and why."""
    summary: str
    """What the command prints about it."""

    @classmethod
    def of(cls, output: str, speech: Speech) -> SpokenFile:
        """The file of a speech. output: its name, whose suffix selects the format.

        Raises InputError for samples that are NaN or infinite.
        """
        content, clipped = audio_file(output, speech.audio, speech.sample_rate)
        return cls(
            content=content,
            seed=cast("int", speech.seed),
            audio_seconds=speech.audio_seconds,
            samples=len(speech.audio),
            suspicious={segment.number: segment.reason for segment in speech.suspicious},
            summary=speech_summary(speech, clipped),
        )


Results = Iterator[tuple[Task, SpokenFile | VoxCPMError]]


class Executor(Protocol):
    """Speaks lines: here, or elsewhere."""

    def __call__(
        self, tasks: Iterator[Task], cancel: CancelToken, note: Notes, warn: Callable[[int, str], None]
    ) -> Results:
        """Yield each line with its file or its error, in the order in which they finish.

        tasks: taken as they can be spoken; taking one may take time. cancel: stops all work; lines may then be left out
        or be Cancelled. note: shows progress. warn: shows a warning about a line, by its number.
        """


ExecutorFactory = Callable[[str, str | None, Bundle, Engine], Executor]


def executor_factory(option: str) -> ExecutorFactory:
    """The entry point of an option of `batch`. Raises MissingExtraError if no installed package has it."""
    for entry in entry_points(group=EXECUTOR_GROUP, name=option):
        return cast("ExecutorFactory", entry.load())
    raise MissingExtraError(
        f'batch --{option} is not installed; install it with: pip install "voxcpm-coreml[{option}]"'
    )


class LocalExecutor:
    """Speaks one line after another. Loads the step models when there is a line."""

    def __init__(self, bundle: Bundle, engine: Engine) -> None:
        self._bundle = bundle
        self._engine = engine

    def __call__(
        self, tasks: Iterator[Task], cancel: CancelToken, note: Notes, warn: Callable[[int, str], None]
    ) -> Results:
        """Yield each line with its file or its error: see `Executor`."""
        if not (ready := list(tasks)):
            return

        def arguments(index: int, task: Task) -> Arguments:
            place = f"{index} of {len(ready)}, {task.line.output}"
            return replace(
                task.line.arguments,
                cancel=cancel,
                progress=lambda progress: note(f"{place}: {progress_text(progress)}"),
            )

        results = spoken_files(
            loaded(self._bundle, self._engine, note),
            [arguments(index, task) for index, task in enumerate(ready, start=1)],
            [task.line.output for task in ready],
            lambda index, text: warn(ready[index].line.line, text),
        )
        for index, result in results:
            yield ready[index], result


def spoken_files(
    tts: VoxCPM, asked: Sequence[Arguments], outputs: Sequence[str], warn: Callable[[int, str], None]
) -> Iterator[tuple[int, SpokenFile | VoxCPMError]]:
    """The index of each utterance with its file as soon as it is spoken, or with its error.

    outputs: names of the files. warn: called with the index of an utterance and a warning about it.
    """
    speaking = 0

    def show(message: Warning | str, category: type[Warning], *_: object) -> None:
        if issubclass(category, UserWarning):
            warn(speaking, str(message))

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = show  # type: ignore[assignment]
        for index, speech in tts.speak_each(asked):
            result: SpokenFile | VoxCPMError
            if isinstance(speech, VoxCPMError):
                result = speech
            else:
                try:
                    result = SpokenFile.of(outputs[index], speech)
                except VoxCPMError as error:
                    result = error
            speaking = index + 1
            yield index, result
