"""The lines of a batch, from a text or JSONL file: each is either valid, or a failure with its reason."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, BinaryIO, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from voxcpm_constants.architecture import Architecture
from voxcpm_constants.bounded_files import read_bounded
from voxcpm_constants.bounds import MAX_TEXT_BYTES
from voxcpm_constants.errors import InputError, VoxCPMError, os_reason, system_errors_as
from voxcpm_constants.json_files import parsed_json
from voxcpm_constants.user_folders import user_path
from voxcpm_runtime.argument_types import whole_number
from voxcpm_runtime.audio.files import FORMATS
from voxcpm_runtime.commands.shared_arguments import (
    STANDARD_INPUT,
    VoiceArguments,
    standard_input,
)
from voxcpm_runtime.options import GenerationOptions, option_table
from voxcpm_runtime.speech.arguments import Arguments
from voxcpm_runtime.text.input_text import checked_control
from voxcpm_runtime.text.normalization import one_line
from voxcpm_runtime.voices.recordings import Recordings

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_TEXT, _JSONL = ".txt", ".jsonl"
_OPTIONS = tuple(declared.name for declared in option_table())
_VOICE = tuple(field.name for field in fields(VoiceArguments) if field.name != "prompt_file")
_RECORDINGS = ("prompt", "prompt_text", "reference")


class _OwnKeys(BaseModel):
    """The keys of a JSONL line that have no option with the same meaning."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    text: str
    output: str | None = None
    """Audio file to write, relative to the output folder; by default output_<line number>.wav."""
    seed: Annotated[int, Field(ge=0)] | None = None


_Line = create_model(
    "_Line",
    __base__=_OwnKeys,
    **dict.fromkeys(_VOICE, (str | None, None)),
    **{declared.name: (declared.type, None) for declared in option_table()},
)  # type: ignore[call-overload]


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
        if self.seed is not None:
            whole_number(self.seed, "seed", 0)


@dataclass(frozen=True)
class BatchLine:
    """A line whose arguments are valid."""

    line: int
    """Number of the line, from 1, blank lines included."""
    output: str
    """Path of its audio file below the output folder, in POSIX form."""
    arguments: Arguments


class Failure(NamedTuple):
    """A line that was not spoken, and why, in one line."""

    line: int
    reason: str

    def __str__(self) -> str:
        return f"line {self.line}: {' '.join(self.reason.split())}"


class Lines:
    """The non-blank lines of an input, checked: texts of a .txt file, or JSON objects of a .jsonl file.

    Each iteration reads the file again line by line, so an input of any size takes little memory.
    """

    def __init__(self, source: str, defaults: Defaults) -> None:
        """Open the input. source: a path, or "-" for standard input, which is JSONL if its first line starts with a
        brace. Audio paths of a JSONL file are relative to its folder.

        Raises InputError for a source that cannot be read, has another suffix, or has no lines.
        """
        self._source = source
        self._defaults = defaults
        self._file = _opened(source)
        first = next(self._numbered(), None)
        if first is None:
            self.close()
            named = "standard input" if source == STANDARD_INPUT else source
            raise InputError(f"{named}: it is empty; expected an utterance on each line")
        if source == STANDARD_INPUT:
            self._folder = Path() if first[1].lstrip().startswith(b"{") else None
        else:
            is_jsonl = Path(source).suffix.lower() == _JSONL
            self._folder = user_path(source).parent if is_jsonl else None

    def __iter__(self) -> Iterator[BatchLine | Failure]:
        """The lines. Only one iteration may be in progress at a time."""
        return (_read(number, line, self._defaults, self._folder) for number, line in self._numbered())

    def close(self) -> None:
        """Close the input."""
        self._file.close()

    def _numbered(self) -> Iterator[tuple[int, bytes]]:
        """The number, from 1, and content of each non-blank line."""
        number = 0
        try:
            self._file.seek(0)
            while block := self._file.readline(MAX_TEXT_BYTES + 1):
                if len(block) > MAX_TEXT_BYTES:
                    raise InputError(
                        f"{self._source}: expected lines of at most {MAX_TEXT_BYTES} bytes, got a longer one"
                    )
                # Lines may also end with carriage returns. Split as bytes, because str.splitlines also splits at
                # characters that JSON strings may contain.
                for line in (block if number else block.removeprefix(_BYTE_ORDER_MARK)).splitlines():
                    number += 1
                    if line.strip():
                        yield number, line
        except OSError as error:
            raise InputError(f"{self._source}: cannot be read ({os_reason(error)})") from None


def _opened(source: str) -> BinaryIO:
    """The input as a file that can seek; standard input and pipes are read into memory."""
    if source == STANDARD_INPUT:
        return io.BytesIO(standard_input())
    path = user_path(source)
    if path.suffix.lower() not in (_TEXT, _JSONL):
        raise InputError(
            f"{source}: expected a name that ends in {_TEXT} (a text on each line) or {_JSONL} "
            f"(a JSON object on each line), or - for standard input"
        )
    try:
        return path.open("rb") if path.is_file() else io.BytesIO(read_bounded(path, MAX_TEXT_BYTES))
    except OSError as error:
        raise InputError(f"{source}: cannot be read ({os_reason(error)})") from None


def _read(number: int, line: bytes, defaults: Defaults, folder: Path | None) -> BatchLine | Failure:
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
    """The keys and values of a JSONL line. Raises InputError for unknown keys and wrong types."""
    try:
        document = parsed_json(text)
    except ValueError as error:
        raise InputError(f"expected a JSON object, but it cannot be read ({error})") from None
    if not isinstance(document, dict):
        raise InputError(f"expected a JSON object with at least a text, got {text[:40]!r}")
    try:
        return _Line.model_validate(document).model_dump(exclude_unset=True)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"][:1])
        reasons = {
            "extra_forbidden": f"unknown key {key!r}; expected some of {', '.join(_Line.model_fields)}",
            "missing": f"the key {key!r} is missing; expected a JSON object with at least a text",
        }
        reason = reasons.get(first["type"]) or f"{key}: {first['msg'].lower()}, got {document[key]!r}"
        raise InputError(reason) from None


def _batch_line(number: int, given: dict[str, Any], defaults: Defaults, folder: Path) -> BatchLine:
    options = asdict(defaults.options) | {name: given[name] for name in _OPTIONS if name in given}
    named = {
        "control": given.get("control", defaults.control),
        "seed": given.get("seed", defaults.seed),
        **options,
    }
    arguments = Arguments.of(given["text"], _recordings(given, defaults.recordings, folder), named)
    arguments.recordings.check_generation(defaults.architecture)
    checked_control(arguments.control, defaults.architecture, continues=arguments.recordings.continues)
    output = given.get("output")
    return BatchLine(
        line=number,
        output=_output_name(f"output_{number:03d}.wav" if output is None else output),
        arguments=replace(arguments, text=one_line(given["text"])),
    )


def _recordings(given: dict[str, Any], defaults: Recordings, folder: Path) -> Recordings:
    """The line's voice. A prompt and its transcript are replaced together; a voice replaces all recordings."""
    if "voice" in given:
        own: dict[str, Any] = {name: _path(given, name, folder) for name in _RECORDINGS}
        return Recordings(**own).in_voice(given["voice"])
    if not given.keys() & set(_RECORDINGS):
        return defaults
    chosen: dict[str, Any] = {"reference": defaults.reference}
    if not given.keys() & {"prompt", "prompt_text"}:
        chosen |= {"prompt": defaults.prompt, "prompt_text": defaults.prompt_text}
    chosen |= {name: _path(given, name, folder) for name in _RECORDINGS if name in given}
    return Recordings(**chosen)


def _path(given: dict[str, Any], name: str, folder: Path) -> str | None:
    value: str | None = given.get(name)
    return value if value is None or name == "prompt_text" else str(folder / user_path(value))


def _output_name(name: str) -> str:
    path = Path(os.path.normpath(name))
    if not name.isprintable() or path.is_absolute() or path.parts[:1] in ((), ("..",)):
        raise InputError(f"output: expected a file name within the output folder, got {name!r}")
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"output: expected a name that ends in {', '.join(FORMATS)}, got {name!r}")
    return path.as_posix()
