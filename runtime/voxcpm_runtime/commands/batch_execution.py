"""Where the lines of a batch are spoken: on this machine, or by what another package brings.

An executor of another package is an entry point, found by its name, as commands are (`commands/cli.py`). So the runtime
knows no cluster.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from typing import Protocol, cast

from voxcpm_constants.errors import MissingExtraError, VoxCPMError
from voxcpm_runtime.audio.files import audio_file
from voxcpm_runtime.batching.jobs import current_job
from voxcpm_runtime.bundle.opening import Bundle
from voxcpm_runtime.commands.batch_lines import BatchLine
from voxcpm_runtime.commands.engine import loaded
from voxcpm_runtime.commands.shared_arguments import Engine
from voxcpm_runtime.commands.status_line import Notes, progress_text
from voxcpm_runtime.speech.arguments import Arguments
from voxcpm_runtime.speech.cancellation import CancelToken
from voxcpm_runtime.speech.progress import ProgressCallback
from voxcpm_runtime.speech.results import Speech
from voxcpm_runtime.voxcpm import VoxCPM

EXECUTOR_GROUP = "voxcpm_coreml.batch_executors"
"""The entry points of executors: each is a function as `BatchExecutors`."""


@dataclass(frozen=True)
class Task:
    """A line that is still to be spoken."""

    line: BatchLine
    digest: str
    """SHA-256 over everything that determines the speech (`Arguments.digest`)."""

    def self_contained(self, bundle: Bundle) -> Arguments:
        """The line's arguments with the content of its recordings, for another machine.

        Raises InputError for recordings that cannot be used, in the words in which this machine would say so.
        """
        arguments = self.line.arguments
        recordings = arguments.recordings
        recordings.read(bundle.architecture, trimmed=arguments.options.trim_silence_vad)
        return replace(arguments, recordings=recordings.self_contained())


@dataclass(frozen=True)
class SpokenFile:
    """The speech of a line as the content of its file, and what is said of it."""

    content: bytes
    seed: int
    audio_seconds: float
    """Seconds of speech."""
    elapsed_seconds: float
    """Seconds of work."""
    real_time_factor: float
    """Seconds of work for a second of speech."""
    samples: int
    clipped: int
    """Number of samples that were clipped."""
    suspicious: dict[int, str]
    """The segments, by number from 1, that are suspicious in every attempt, and why."""

    @classmethod
    def of(cls, output: str, speech: Speech) -> SpokenFile:
        """The file of a speech. output: its name, whose ending chooses the format.

        Raises InputError for samples that are not finite.
        """
        content, clipped = audio_file(output, speech.audio, speech.sample_rate)
        return cls(
            content=content,
            seed=cast("int", speech.seed),
            audio_seconds=speech.audio_seconds,
            elapsed_seconds=speech.elapsed_seconds,
            real_time_factor=speech.real_time_factor,
            samples=len(speech.audio),
            clipped=clipped,
            suspicious={segment.number: segment.reason for segment in speech.suspicious},
        )


class Executor(Protocol):
    """Speaks lines: here, or elsewhere."""

    def __call__(
        self, tasks: Iterator[Task], cancel: CancelToken, note: Notes, warn: Callable[[int, str], None]
    ) -> Iterator[tuple[Task, SpokenFile | VoxCPMError]]:
        """Each line with its file, or with its error, in the order in which they end.

        tasks: the lines, taken when they can be spoken, in any number; taking one may take time. cancel: ends it all;
        lines may then be left out, or be Cancelled. note: shows progress. warn: shows a warning about the line of a
        number.
        """


class BatchExecutors(Protocol):
    """An entry point that makes executors."""

    def __call__(self, address: str, name: str | None, bundle: Bundle, engine: Engine) -> Executor:
        """An executor. address: of the cluster. name: the bundle as the user named it, None for the built-in voice."""


def executor_from(option: str) -> BatchExecutors:
    """What makes the executors of an option of `batch`. Raises MissingExtraError if no installed package brings it."""
    for entry in entry_points(group=EXECUTOR_GROUP, name=option):
        return cast("BatchExecutors", entry.load())
    raise MissingExtraError(
        f'batch --{option} is not part of this installation; install it with: pip install "voxcpm-coreml[{option}]"'
    )


class OnThisMachine:
    """Speaks as many lines at a time as the bundle was converted for; its step models are loaded if there is a line."""

    def __init__(self, bundle: Bundle, engine: Engine) -> None:
        self._bundle = bundle
        self._engine = engine

    def __call__(
        self, tasks: Iterator[Task], cancel: CancelToken, note: Notes, warn: Callable[[int, str], None]
    ) -> Iterator[tuple[Task, SpokenFile | VoxCPMError]]:
        """Each line with its file or error: see `Executor`."""
        if not (ready := list(tasks)):
            return
        asked = [
            replace(
                task.line.arguments,
                cancel=cancel,
                progress=_reported(note, f"{place} of {len(ready)}, {task.line.output}"),
            )
            for place, task in enumerate(ready, start=1)
        ]
        outputs = [task.line.output for task in ready]
        for index, result in spoken_files(
            loaded(self._bundle, self._engine, note),
            asked,
            outputs,
            lambda place, text: warn(ready[place].line.line, text),
        ):
            yield ready[index], result


def spoken_files(
    tts: VoxCPM, asked: Sequence[Arguments], outputs: Sequence[str], warn: Callable[[int, str], None]
) -> Iterator[tuple[int, SpokenFile | VoxCPMError]]:
    """The index of each utterance with its file as soon as it is spoken, or with its error.

    outputs: names of the files. warn: called with the index of an utterance and a warning about it.
    """
    with _warnings_given_to(warn):
        for index, speech in tts.speak_each(asked):
            if isinstance(speech, VoxCPMError):
                yield index, speech
                continue
            try:
                yield index, SpokenFile.of(outputs[index], speech)
            except VoxCPMError as error:
                yield index, error


@contextlib.contextmanager
def _warnings_given_to(warn: Callable[[int, str], None]) -> Iterator[None]:
    """Each warning is given with the index of its utterance, which is the one that the warning thread speaks."""

    def show(message: Warning | str, category: type[Warning], *_: object) -> None:
        if issubclass(category, UserWarning):
            warn(current_job.get(), str(message))

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = show  # type: ignore[assignment]
        yield


def _reported(note: Notes, place: str) -> ProgressCallback:
    return lambda progress: note(f"{place}: {progress_text(progress)}")
