"""The lines of a batch: parsed from a text or JSONL file, and spoken for audio files."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from voxcpm_constants.errors import InputError, VoxCPMError, system_errors_as
from voxcpm_constants.json_files import parsed_json
from voxcpm_constants.user_folders import user_path
from voxcpm_runtime.argument_types import checked_text, shown
from voxcpm_runtime.audio.files import FORMATS
from voxcpm_runtime.audio.pcm import Audio
from voxcpm_runtime.bundle.opening import Bundle
from voxcpm_runtime.commands.shared_arguments import STANDARD_INPUT, VoiceArguments, input_content
from voxcpm_runtime.commands.status_line import speech_facts, speech_summary
from voxcpm_runtime.options import GenerationOptions, option_table
from voxcpm_runtime.speech.plan import SPEAKING, Plan
from voxcpm_runtime.speech.request import Request
from voxcpm_runtime.speech.results import Speech
from voxcpm_runtime.text.normalization import said_text
from voxcpm_runtime.voices.recordings import Recordings
from voxcpm_runtime.voxcpm import VoxCPM
from voxcpm_runtime.words.files import timestamps_file

_TEXT, _JSONL = ".txt", ".jsonl"
_OPTIONS = tuple(declared.name for declared in option_table())
_VOICE = tuple(one.name for one in fields(VoiceArguments) if one.name not in ("prompt_file", "lexicon"))
_RECORDINGS = ("prompt", "prompt_text", "reference")
_KEYS = ("text", "output", "seed", *_VOICE, *_OPTIONS)
_STRINGS = ("text", "output", *_VOICE)


@dataclass(frozen=True)
class BatchLine:
    """A line whose arguments are valid."""

    number: int  # Number of the line, from 1, blank lines included
    output: str  # Path of its audio file below the output folder, in POSIX form
    request: Request
    digest: str = ""  # `Request.digest`; empty until the line is reached
    timestamps: str = ""  # Ending of a file with the times of its words; empty for none

    def self_contained(self, bundle: Bundle) -> BatchLine:
        """The line with the content of its recordings, for another machine. Raises InputError."""
        recordings = self.request.voiced(bundle)
        recordings.read(bundle.architecture, trimmed=self.request.options.trim_silence_vad)
        return replace(self, request=replace(self.request, recordings=recordings.self_contained()))


class Failure(NamedTuple):
    """A line that was not spoken, and why."""

    number: int
    reason: str

    def __str__(self) -> str:
        return f"line {self.number}: {' '.join(self.reason.split())}"


def read_lines(source: str, defaults: Request) -> list[BatchLine | Failure]:
    """Parse the non-blank lines of a .txt or .jsonl file. Raises InputError for a source that cannot be used.

    source: "-" is standard input, which is JSONL if its first line starts with a brace. defaults: for what a line does
    not set. Audio paths in a JSONL file are relative to its folder.
    """
    suffix = None if source == STANDARD_INPUT else user_path(source).suffix.lower()
    if suffix not in (_TEXT, _JSONL, None):
        raise InputError(
            f"{source}: expected a name that ends in {_TEXT} (one text per line) or {_JSONL} "
            f"(one JSON object per line), or - for standard input"
        )
    # Split as bytes, because str.splitlines also splits at characters that JSON strings may contain.
    content = input_content(source).removeprefix(b"\xef\xbb\xbf").splitlines()
    lines = [(number, line) for number, line in enumerate(content, start=1) if line.strip()]
    if not lines:
        name = source if suffix else "standard input"
        raise InputError(f"{name}: it is empty; expected one utterance per line")
    is_jsonl = suffix == _JSONL if suffix else lines[0][1].lstrip().startswith(b"{")
    # Of "-", the parent is the current folder.
    folder = user_path(source).parent if is_jsonl else None
    return [_line(number, line, folder, defaults) for number, line in lines]


def _line(number: int, content: bytes, folder: Path | None, defaults: Request) -> BatchLine | Failure:
    """One line, checked. folder: base of the audio paths in a JSONL line; None for a line of text."""
    try:
        with system_errors_as(InputError):
            try:
                text = content.decode().strip()
            except UnicodeDecodeError:
                raise InputError("expected UTF-8 text") from None
            given = {"text": text} if folder is None else _json_line(text)
            output = given.get("output")
            name = _output_name(f"output_{number:03d}.wav" if output is None else output)
            return BatchLine(number, name, _request(given, folder or Path(), defaults))
    except VoxCPMError as error:
        return Failure(number, str(error))


def _json_line(text: str) -> dict[str, Any]:
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
    for key in _STRINGS:
        value = document.get(key)
        if not isinstance(value, str) and (value is not None or (key == "text")):
            raise InputError(f"{key}: expected a string, got {shown(value)}")
    return document


def _request(given: dict[str, Any], folder: Path, defaults: Request) -> Request:
    own = {"control": defaults.control, "seed": defaults.seed, **defaults.options.changed()}
    if "fast" in given or "inference_timesteps" in given:
        own["fast"] = own["inference_timesteps"] = None
    own |= {name: given[name] for name in ("control", "seed", *_OPTIONS) if name in given}
    # null unsets what the command line sets.
    options = GenerationOptions(**{name: own[name] for name in _OPTIONS if own.get(name) is not None})
    return Request(
        text=said_text(checked_text(given["text"], "text")),
        recordings=_recordings(given, folder, defaults.recordings),
        control=own["control"],
        lexicon=defaults.lexicon,
        options=options,
        seed=own["seed"],
    )


def _recordings(given: dict[str, Any], folder: Path, defaults: Recordings) -> Recordings:
    """The line's voice. A prompt and its transcript are replaced together; a voice replaces all recordings."""
    own: dict[str, Any] = {name: given[name] for name in _RECORDINGS if name in given}
    for name in ("prompt", "reference"):
        if own.get(name) is not None:
            own[name] = str(folder / user_path(own[name]))
    if "voice" in given:
        return Recordings(**own).with_voice(given["voice"])
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


@dataclass(frozen=True)
class SpokenFile:
    """The speech of a line, for its file."""

    audio: Audio = field(repr=False)  # (samples,) in [-1, 1]
    sample_rate: int  # Hz
    facts: dict[str, Any]
    """For the record: seed, seconds, samples, the reasons of suspicious segments by number, from 1, and the words that
    are unsaid or repeated."""
    summary: str  # What the command prints about it, before the number of clipped samples
    timestamps: bytes | None = None  # Content of the file with the times of its words


def spoken_files(
    tts: VoxCPM, lines: Sequence[BatchLine], warn: Callable[[int, str], None], together: int = 1
) -> Iterator[tuple[BatchLine, SpokenFile | VoxCPMError]]:
    """Yield each line with what its file holds, or its error. together: see `VoxCPM.speak_together`; then in any order.

    warn: called with the number of a line and a warning about it.
    """
    planned: list[tuple[BatchLine, Plan]] = []

    def show(message: Warning | str, category: type[Warning], *_: object) -> None:
        if issubclass(category, UserWarning):
            speaking = SPEAKING.get(None)
            request = speaking.request if speaking else line.request  # The line that is being planned
            warn(next(one.number for one in lines if one.request is request), str(message))

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = show  # type: ignore[assignment]
        for line in lines:
            try:
                planned.append((line, tts.plan_request(line.request)))
            except VoxCPMError as error:  # noqa: PERF203 - of each line
                yield line, error
        for index, speech in tts.speak_together([plan for _, plan in planned], together):
            line, plan = planned[index]
            yield line, speech if isinstance(speech, VoxCPMError) else _file(line, plan, speech)


def _file(line: BatchLine, plan: Plan, speech: Speech) -> SpokenFile:
    ending = line.timestamps
    times = timestamps_file(speech.words, ending, plan.text or "") if ending else None
    return SpokenFile(speech.audio, speech.sample_rate, speech_facts(speech), speech_summary(speech), times)
