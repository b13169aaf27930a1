"""What a batch is to speak: the lines of a text or JSONL file, each checked, those that cannot be spoken told apart."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from voxcpm_constants.errors import InputError, VoxCPMError, os_reason
from voxcpm_runtime.audio.files import FORMATS
from voxcpm_runtime.options import GenerationOptions, checked_options
from voxcpm_runtime.speech.request import normalized_text
from voxcpm_runtime.text.control import controlled_text, require_reference
from voxcpm_runtime.voices.store import VoiceStore
from voxcpm_runtime.voices.voice import Voice

STANDARD_INPUT = "-"
_TEXT, _JSONL = ".txt", ".jsonl"
_PROMPT = ("prompt", "prompt_text")
_AUDIO = ("prompt", "reference")
_RECORDINGS = (*_PROMPT, "reference")
_INHERITED = (*_RECORDINGS, "voice", "control", "seed")


class _Line(BaseModel):
    """A line of a JSONL file, but for the generation options; what it leaves out is as on the command line."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    text: str
    output: str | None = None
    """Audio file to write, relative to the output folder; by default output_<line number>.wav."""
    seed: Annotated[int, Field(ge=0)] | None = None
    prompt: str | None = None
    """Audio to continue; it and its transcript replace the command line's together."""
    prompt_text: str | None = None
    reference: str | None = None
    voice: str | None = None
    """Name or file of a kept voice, in place of recordings."""
    control: str | None = None


_OPTIONS = get_type_hints(GenerationOptions)
_FullLine = create_model(
    "_FullLine", __base__=_Line, **{name: (hint, None) for name, hint in _OPTIONS.items()}
)  # type: ignore[call-overload]


@dataclass(frozen=True)
class Defaults:
    """The command line's voice and options, and what all lines share."""

    generation: str
    """`architecture.generation`"""
    prompt: str | None
    prompt_text: str | None
    reference: str | None
    control: str | None
    seed: int | None
    options: dict[str, Any]
    voice: str | None = None


@dataclass(frozen=True)
class Utterance:
    """A line that can be spoken, as far as its arguments tell."""

    line: int
    """From 1, blank lines counted."""
    output: str
    """POSIX path below the output folder."""
    text: str
    """With its control before it."""
    prompt: str | None
    prompt_text: str | None
    reference: str | None
    seed: int | None
    options: dict[str, Any]
    voice: Voice | None = None

    def arguments(self) -> dict[str, Any]:
        """Of `VoxCPM.speak`."""
        return {
            "text": self.text,
            "prompt_wav_path": self.prompt,
            "prompt_text": self.prompt_text,
            "reference_wav_path": self.reference,
            "voice": self.voice,
            "seed": self.seed,
            **self.options,
        }

    def digest(self, bundle: str) -> str:
        """Of everything that the speech follows from: arguments, content of the audio files, and the bundle's digest.

        Options at their defaults are left out, so that a release with more of them knows the speech of this one.
        Raises InputError for an audio file that cannot be read.
        """
        parts = {
            "bundle": bundle,
            "text": self.text,
            "prompt": _file_digest(self.prompt, "prompt audio"),
            "prompt_text": self.prompt_text,
            "reference": _file_digest(self.reference, "reference audio"),
            "seed": self.seed,
            "options": _changed(self.options),
        }
        if self.voice is not None:
            parts["voice"] = self.voice.digest
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


class Failure(NamedTuple):
    """A line that was not spoken, and why, in one line."""

    line: int
    reason: str

    def __str__(self) -> str:
        return f"line {self.line}: {' '.join(self.reason.split())}"


def read_utterances(source: str, defaults: Defaults) -> Iterator[Utterance | Failure]:
    """One for each line that is not blank: of a .txt file its text, of a .jsonl file a JSON object.

    source: a path, or "-" for standard input, which is JSONL when its first line starts with a brace. Audio paths of
    a JSONL file are relative to its folder.

    Raises InputError for a source that cannot be read, has another ending, or has no lines.
    """
    content = _content(source)
    # Bytes, whose lines end where those of files do; a str has ends of line that JSON strings may contain.
    lines = [(number, line) for number, line in enumerate(content.splitlines(), start=1) if line.strip()]
    if not lines:
        raise InputError(f"{_named(source)}: it is empty; expected an utterance on each line")
    folder = Path() if source == STANDARD_INPUT else Path(source).expanduser().parent
    is_jsonl = _is_jsonl(source, lines[0][1])
    return (_parsed(number, line, defaults, folder if is_jsonl else None) for number, line in lines)


def check_defaults(defaults: Defaults) -> None:
    """Raises InputError for what no line could be spoken with that says nothing of its own."""
    _utterance(1, _FullLine(text="a"), defaults, Path()).digest("")
    if defaults.seed is not None and defaults.seed < 0:
        raise InputError(f"seed must be a whole number from 0, got {defaults.seed}")


def _content(source: str) -> bytes:
    if source == STANDARD_INPUT:
        content = sys.stdin.buffer.read()
    else:
        path = Path(source).expanduser()
        if path.suffix.lower() not in (_TEXT, _JSONL):
            raise InputError(
                f"{source}: expected a name that ends in {_TEXT} (a text on each line) or {_JSONL} "
                f"(a JSON object on each line), or - for standard input"
            )
        try:
            content = path.read_bytes()
        except OSError as error:
            raise InputError(f"{source}: cannot be read ({os_reason(error)})") from None
    return content.removeprefix(b"\xef\xbb\xbf")


def _named(source: str) -> str:
    return "standard input" if source == STANDARD_INPUT else source


def _is_jsonl(source: str, first_line: bytes) -> bool:
    if source == STANDARD_INPUT:
        return first_line.lstrip().startswith(b"{")
    return Path(source).suffix.lower() == _JSONL


def _parsed(number: int, line: bytes, defaults: Defaults, folder: Path | None) -> Utterance | Failure:
    """folder: of a JSONL line's audio paths; None for a line of text."""
    try:
        try:
            text = line.decode().strip()
        except UnicodeDecodeError:
            raise InputError("expected UTF-8 text") from None
        given = _FullLine(text=text) if folder is None else _json_line(text)
        return _utterance(number, given, defaults, folder or Path())
    except VoxCPMError as error:
        return Failure(number, str(error))


def _json_line(text: str) -> _Line:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"expected a JSON object, but it cannot be read ({error})") from None
    if not isinstance(document, dict):
        raise InputError(f"expected a JSON object with at least a text, got {text[:40]!r}")
    try:
        return _FullLine.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"][:1])
        if first["type"] == "extra_forbidden":
            raise InputError(
                f"unknown key {key!r}; expected some of {', '.join(_FullLine.model_fields)}"
            ) from None
        if first["type"] == "missing":
            raise InputError(
                f"the key {key!r} is missing; expected a JSON object with at least a text"
            ) from None
        raise InputError(f"{key}: {first['msg'].lower()}, got {document[key]!r}") from None


def _utterance(number: int, given: _Line, defaults: Defaults, folder: Path) -> Utterance:
    said = given.model_dump(exclude_unset=True)
    said |= {
        name: str(folder / Path(said[name]).expanduser()) for name in _AUDIO if said.get(name) is not None
    }
    inherited: dict[str, Any] = {name: getattr(defaults, name) for name in _INHERITED}
    if said.keys() & set(_PROMPT):
        # One of the line's and one of the command line's would make no pair.
        inherited |= dict.fromkeys(_PROMPT)
    if "voice" in said:
        inherited |= dict.fromkeys(_RECORDINGS)
    elif said.keys() & set(_RECORDINGS):
        inherited["voice"] = None
    chosen = inherited | said
    options = defaults.options | {name: said[name] for name in _OPTIONS if name in said}
    checked_options(**options)
    if chosen["reference"] is not None:
        require_reference(defaults.generation)
    text = normalized_text(given.text, "text")
    voice = _voice(chosen)
    continues = chosen["prompt_text"] is not None or (voice is not None and voice.prompt is not None)
    return Utterance(
        line=number,
        output=_output_name(f"output_{number:03d}.wav" if given.output is None else given.output),
        text=controlled_text(text, chosen["control"], generation=defaults.generation, continues=continues),
        prompt=chosen["prompt"],
        prompt_text=chosen["prompt_text"],
        reference=chosen["reference"],
        seed=chosen["seed"],
        options=options,
        voice=voice,
    )


def _voice(chosen: dict[str, Any]) -> Voice | None:
    if chosen["voice"] is None:
        return None
    if any(chosen[name] is not None for name in _RECORDINGS):
        raise InputError("a voice takes the place of prompt and reference: give one of them")
    return VoiceStore().load(chosen["voice"])


def _output_name(name: str) -> str:
    path = Path(os.path.normpath(name))
    if not name.isprintable() or path.is_absolute() or path.parts[:1] in ((), ("..",)):
        raise InputError(f"output: expected a file name within the output folder, got {name!r}")
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"output: expected a name that ends in {', '.join(FORMATS)}, got {name!r}")
    return path.as_posix()


def _changed(options: dict[str, Any]) -> dict[str, Any]:
    plain = {field.name: field.default for field in dataclasses.fields(GenerationOptions)}
    return {name: value for name, value in options.items() if value != plain.get(name)}


def _file_digest(path: str | None, what: str) -> str | None:
    if path is None:
        return None
    try:
        return hashlib.sha256(Path(path).expanduser().read_bytes()).hexdigest()
    except (OSError, ValueError) as error:
        reason = (
            "no such file"
            if isinstance(error, FileNotFoundError)
            else getattr(error, "strerror", None) or error
        )
        raise InputError(f"{what} {path}: {reason}") from None
