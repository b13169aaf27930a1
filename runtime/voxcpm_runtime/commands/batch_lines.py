"""The lines of a batch: read from a text or JSONL file, and spoken on this machine or by another package's executor.

An executor is an entry point, found by its name, as commands are (`commands/cli.py`): the runtime knows no cluster.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NamedTuple, cast

from voxcpm_constants.architecture import Architecture
from voxcpm_constants.bounds import MAX_TEXT_BYTES
from voxcpm_constants.errors import (
    InputError,
    MissingExtraError,
    VoxCPMError,
    os_reason,
    system_errors_as,
)
from voxcpm_constants.json_files import parsed_json, read_bounded
from voxcpm_constants.user_folders import user_path
from voxcpm_runtime.argument_types import checked_text, shown
from voxcpm_runtime.audio.files import FORMATS, audio_file
from voxcpm_runtime.bundle.opening import Bundle
from voxcpm_runtime.commands.shared_arguments import (
    STANDARD_INPUT,
    Engine,
    VoiceArguments,
    loaded,
    standard_input,
)
from voxcpm_runtime.commands.status_line import Notes, progress_text, speech_summary
from voxcpm_runtime.options import GenerationOptions, option_table
from voxcpm_runtime.speech.arguments import Arguments, CancelToken
from voxcpm_runtime.speech.plan import plan
from voxcpm_runtime.speech.results import Progress
from voxcpm_runtime.text.control import checked_control
from voxcpm_runtime.text.normalization import said_text
from voxcpm_runtime.voices.recordings import Recordings
from voxcpm_runtime.voxcpm import VoxCPM

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_TEXT, _JSONL = ".txt", ".jsonl"
_OPTIONS = tuple(declared.name for declared in option_table())
_VOICE = tuple(field.name for field in fields(VoiceArguments) if field.name != "prompt_file")
_RECORDINGS = ("prompt", "prompt_text", "reference")
_KEYS = ("text", "output", "seed", *_VOICE, *_OPTIONS)
_STRINGS = ("text", "output", *_VOICE)
_FLOATS = tuple(declared.name for declared in option_table() if declared.type is float)


@dataclass(frozen=True)
class Defaults:
    """Values from the command line for lines without their own."""

    architecture: Architecture
    recordings: Recordings
    control: str | None
    seed: int | None
    options: GenerationOptions

    def check(self) -> None:
        """Raises InputError for values with which no line can be spoken."""
        checked_control(self.control, self.architecture, continues=self.recordings.continues)
        self.recordings.read(self.architecture, trimmed=self.options.trim_silence_vad)


@dataclass(frozen=True)
class BatchLine:
    """A line whose arguments are valid."""

    line: int
    """Number of the line, from 1, blank lines included."""
    output: str
    """Path of its audio file below the output folder, in POSIX form."""
    arguments: Arguments


class Failure(NamedTuple):
    """A line that was not spoken, and why."""

    line: int
    reason: str

    def __str__(self) -> str:
        return f"line {self.line}: {' '.join(self.reason.split())}"


def read_lines(source: str, defaults: Defaults) -> list[BatchLine | Failure]:
    """The non-blank lines of a .txt or .jsonl file, checked. Raises InputError for a source that cannot be used.

    source: "-" is standard input, which is JSONL if its first line starts with a brace. Audio paths of a JSONL file
    are relative to its folder.
    """
    content = _content(source).removeprefix(_BYTE_ORDER_MARK)
    # Split as bytes, because str.splitlines also splits at characters that JSON strings may contain.
    lines = [(number, line) for number, line in enumerate(content.splitlines(), start=1) if line.strip()]
    name = "standard input" if source == STANDARD_INPUT else source
    if not lines:
        raise InputError(f"{name}: it is empty; expected an utterance on each line")
    if any(len(line) > MAX_TEXT_BYTES for _, line in lines):
        raise InputError(f"{name}: expected lines of at most {MAX_TEXT_BYTES} bytes, got a longer one")
    if source == STANDARD_INPUT:
        folder = Path() if lines[0][1].lstrip().startswith(b"{") else None
    else:
        path = user_path(source)
        folder = path.parent if path.suffix.lower() == _JSONL else None
    return [_line(number, line, defaults, folder) for number, line in lines]


def _content(source: str) -> bytes:
    if source == STANDARD_INPUT:
        return standard_input()
    path = user_path(source)
    if path.suffix.lower() not in (_TEXT, _JSONL):
        raise InputError(
            f"{source}: expected a name that ends in {_TEXT} (a text on each line) or {_JSONL} "
            f"(a JSON object on each line), or - for standard input"
        )
    try:
        return path.read_bytes() if path.is_file() else read_bounded(path, MAX_TEXT_BYTES)
    except OSError as error:
        raise InputError(f"{source}: cannot be read ({os_reason(error)})") from None


def _line(number: int, line: bytes, defaults: Defaults, folder: Path | None) -> BatchLine | Failure:
    """One line, checked. folder: the base of audio paths in a JSONL line; None for a line of text."""
    try:
        with system_errors_as(InputError):
            try:
                text = line.decode().strip()
            except UnicodeDecodeError:
                raise InputError("expected UTF-8 text") from None
            given = {"text": text} if folder is None else json_line(text)
            return _batch_line(number, given, defaults, folder or Path())
    except VoxCPMError as error:
        return Failure(number, str(error))


def json_line(text: str) -> dict[str, Any]:
    """The keys and values of a JSONL line. Raises InputError."""
    try:
        document = parsed_json(text)
    except ValueError as error:
        raise InputError(f"expected a JSON object, but it cannot be read ({error})") from None
    if not isinstance(document, dict):
        raise InputError(f"expected a JSON object with at least a text, got {text[:40]!r}")
    if unknown := [key for key in document if key not in _KEYS]:
        raise InputError(f"unknown key {unknown[0]!r}; expected some of {', '.join(_KEYS)}")
    if "text" not in document:
        raise InputError("the key 'text' is missing; expected a JSON object with at least a text")
    for key, value in document.items():
        if key in _STRINGS and not (isinstance(value, str) or (value is None and key != "text")):
            raise InputError(f"{key}: expected a string, got {shown(value)}")
        # The digest of a line does not depend on how a number is written.
        if key in _FLOATS and type(value) is int:
            document[key] = float(value)
    return document


def _batch_line(number: int, given: dict[str, Any], defaults: Defaults, folder: Path) -> BatchLine:
    named = {
        "control": given.get("control", defaults.control),
        "seed": given.get("seed", defaults.seed),
        **asdict(defaults.options),
        **{name: given[name] for name in _OPTIONS if name in given},
    }
    arguments = Arguments.of(
        checked_text(given["text"], "text"), _recordings(given, defaults.recordings, folder), named
    )
    checked_control(arguments.control, defaults.architecture, continues=arguments.recordings.continues)
    output = given.get("output")
    return BatchLine(
        line=number,
        output=_output_name(f"output_{number:03d}.wav" if output is None else output),
        arguments=replace(arguments, text=said_text(given["text"])),
    )


def _recordings(given: dict[str, Any], defaults: Recordings, folder: Path) -> Recordings:
    """The line's voice. A prompt and its transcript are replaced together; a voice replaces all recordings."""
    own: dict[str, Any] = {name: given[name] for name in _RECORDINGS if name in given}
    for name in ("prompt", "reference"):
        if own.get(name) is not None:
            own[name] = str(folder / user_path(own[name]))
    if "voice" in given:
        return Recordings(**own).in_voice(given["voice"])
    if not own:
        return defaults
    if own.keys() & {"prompt", "prompt_text"}:
        return Recordings(**{"reference": defaults.reference, **own})
    return Recordings(defaults.prompt, defaults.prompt_text, **own)


def _output_name(name: str) -> str:
    path = Path(os.path.normpath(name))
    if not name.isprintable() or path.is_absolute() or path.parts[:1] in ((), ("..",)):
        raise InputError(f"output: expected a file name within the output folder, got {name!r}")
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"output: expected a name that ends in {', '.join(FORMATS)}, got {name!r}")
    return path.as_posix()


EXECUTOR_GROUP = "voxcpm_coreml.batch_executors"
"""Entry points that make executors: functions (cluster address, bundle as the user named it, Bundle, Engine)."""


@dataclass(frozen=True)
class Task:
    """A line that is still to be spoken."""

    line: BatchLine
    digest: str
    """`Arguments.digest`: of everything that determines the speech."""

    def self_contained(self, bundle: Bundle) -> Arguments:
        """The line's arguments with the content of its recordings, for another machine. Raises InputError."""
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

            def show(progress: Progress, place: str = place) -> None:
                note(f"{place}: {progress_text(progress)}")

            arguments = replace(task.line.arguments, cancel=cancel, progress=show)
            yield task, spoken_file(tts, arguments, task.line.output, partial(warn, task.line.line))

    return execute


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
