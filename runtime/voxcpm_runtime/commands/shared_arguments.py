"""Groups of arguments and options that several commands share.

A group is a dataclass whose fields typer sees as options (`takes_groups`). They are annotated with typer's `Option`, or
with the runtime's own, which Python and JSONL use as well.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, cast, get_type_hints

import typer

from voxcpm_constants.bounds import MAX_TEXT_BYTES
from voxcpm_constants.errors import InputError, naming_errors
from voxcpm_constants.json_files import read_at_most, read_bounded
from voxcpm_constants.progress_lines import Notes
from voxcpm_constants.user_folders import user_path
from voxcpm_runtime.argument_types import checked_text
from voxcpm_runtime.backends.core_ml.compute_units import AUTO, ComputeUnits, read_compute_units
from voxcpm_runtime.backends.loading import Backend, check_engine
from voxcpm_runtime.bundle.opening import Bundle, open_bundle
from voxcpm_runtime.bundle.pretrained import check_device, pretrained_bundle
from voxcpm_runtime.options import Option, checked_options
from voxcpm_runtime.voices.recordings import Recordings
from voxcpm_runtime.voices.store import VoiceStore
from voxcpm_runtime.voxcpm import VoxCPM

STANDARD_INPUT = "-"
BundleArgument = Annotated[
    str | None,
    typer.Argument(metavar="BUNDLE", help="Folder or hub id (org/name). Default: the built-in voice."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Hide progress and summary.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
_PRECISION = "int8, int4, fp16 or fp32. Default: the first of these that the bundle has."
PrecisionOption = Annotated[str | None, typer.Option(help=_PRECISION)]
_voice = functools.partial(Option, panel="Voice")
_engine = functools.partial(typer.Option, rich_help_panel="Bundle and machine")
_no_effect = functools.partial(typer.Option, hidden=True, help="Ignored; for compatibility.")


@dataclass(frozen=True)
class TextArguments:
    """The text to speak, given directly or in a file."""

    text: Annotated[str | None, typer.Option("--text", "-t", help="Text to speak.")] = None
    text_file: Annotated[str | None, typer.Option(help="UTF-8 file with the text; - is stdin.")] = None

    def text_to_speak(self) -> str:
        """The text with its paragraphs. Raises InputError unless exactly one is given."""
        if (self.text is None) == (self.text_file is None):
            raise InputError("expected one of --text and --text-file")
        if self.text_file is None:
            return checked_text(self.text, "text")
        return checked_text(_utf8_file(self.text_file), f"text of {self.text_file}")


@dataclass(frozen=True)
class OutputArguments:
    """The output file, and how to write it."""

    output: Annotated[
        str,
        typer.Option(
            "--output", "-o",
            help="Audio file; its suffix selects the format. - streams raw 16-bit PCM to standard output.",
        ),
    ] = "out.wav"  # fmt: skip
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace even a read-only file.")] = False
    seed: Annotated[int | None, typer.Option(help="Same seed, same speech. Default: random.")] = None
    keep_partial: Annotated[
        bool, typer.Option("--keep-partial", help="On Ctrl-C, save the speech so far.")
    ] = False
    quiet: Quiet = False
    as_json: Json = False
    timestamps: Annotated[
        str | None,
        typer.Option(help="File for word timestamps: .json, or subtitles as .srt or .vtt."),
    ] = None


# fmt: off
@dataclass(frozen=True)
class RecordingArguments:
    """Recordings of the voice to speak in. A batch's JSONL has the same keys, except for `prompt_file`."""

    prompt: Annotated[str | None, _voice(
        "Audio to continue in the same voice.", flags=("--prompt", "--prompt-audio", "-pa"),
    )] = None
    prompt_text: Annotated[str | None, _voice(
        "Transcript of the prompt, word for word.", flags=("--prompt-text", "-pt"),
    )] = None
    prompt_file: Annotated[str | None, _voice(
        "UTF-8 file with the transcript of the prompt, instead of --prompt-text.",
    )] = None
    reference: Annotated[str | None, _voice(
        "Audio of the voice to clone. VoxCPM2 only.", flags=("--reference", "--reference-audio", "-ra"),
    )] = None

    def transcript(self) -> str | None:
        """The prompt's transcript. Raises InputError if it is given twice."""
        if self.prompt_text is not None and self.prompt_file is not None:
            raise InputError("expected one of --prompt-text and --prompt-file, got both")
        return self.prompt_text if self.prompt_file is None else _utf8_file(self.prompt_file)

    def files(self) -> list[str | None]:
        """The files of the recordings; None for one that is not given."""
        return [self.prompt, input_file(self.prompt_file), self.reference]


@dataclass(frozen=True)
class VoiceArguments(RecordingArguments):
    """The voice to speak in; by default the checkpoint's own."""

    voice: Annotated[str | None, _voice(
        "Name of a voice (see `voices list`), or path of a voice file.", flags=("--voice", "-v"),
    )] = None
    control: Annotated[str | None, _voice(
        'Voice or style in words, such as "warm, slow"; prepended to the text in parentheses. VoxCPM2 only.',
    )] = None

    lexicon: Annotated[list[str] | None, _voice(
        "Pronunciation lexicon: WRITTEN, a tab, SAID on each line; repeatable.",
    )] = None

    def recordings(self) -> Recordings:
        """The recordings or the voice, which is loaded. Raises InputError for contradictions and an unknown voice."""
        return Recordings(self.prompt, self.transcript(), self.reference).with_voice(self.voice)

    def files(self) -> list[str | None]:
        """The files of the voice; None for one that is not given."""
        voice = None if self.voice is None else str(VoiceStore().located(self.voice))
        return [*super().files(), voice, *(self.lexicon or ())]
# fmt: on


@dataclass(frozen=True)
class Engine:
    """The step models to load and where to run them: keyword arguments of `VoxCPM.from_bundle`."""

    precision: Annotated[str | None, _engine(help=_PRECISION)] = None
    backend: Annotated[str, _engine(help="coreml, coreai, portable, or auto: the best available.")] = "auto"
    compute_units: Annotated[
        list[str] | None,
        _engine(
            metavar="[NAME=]UNIT",
            help="Core ML: auto, all, cpu, cpu_and_gpu or cpu_and_ne; with NAME= for one step model (repeatable).",
        ),
    ] = None
    threads: Annotated[int | None, _engine(help="Threads per operation (portable).")] = None
    verify: Annotated[bool, _engine("--verify", help="Hash every file of the bundle first.")] = False

    def units(self) -> ComputeUnits:
        """The compute units. Raises InputError for contradictions."""
        return read_compute_units(self.compute_units) if self.compute_units else AUTO


@dataclass(frozen=True)
class CheckpointArguments:
    """A checkpoint instead of a bundle, with upstream's flags."""

    model_path: Annotated[str | None, _engine(help="Folder of a checkpoint, converted on first use.")] = None
    hf_model_id: Annotated[str | None, _engine(help="Hub id of a checkpoint, converted on first use.")] = None
    lora_path: Annotated[str | None, _engine(help="LoRA to merge: its folder or weight file.")] = None
    cache_dir: Annotated[str | None, _engine(help="With --hf-model-id: folder for downloads.")] = None
    local_files_only: Annotated[bool, _engine("--local-files-only", help="Do not download.")] = False
    device: Annotated[str, _no_effect()] = "auto"
    denoise: Annotated[bool, typer.Option("--denoise", hidden=True, help="Not supported.")] = False
    no_denoiser: Annotated[bool, _no_effect("--no-denoiser")] = False
    no_optimize: Annotated[bool, _no_effect("--no-optimize")] = False
    zipenhancer_path: Annotated[str | None, _no_effect()] = None

    def bundle_of(self, bundle: str | None, precision: str | None) -> str | None:
        """The bundle, or that of the checkpoint, converted on first use. Raises InputError for contradictory flags."""
        if self.denoise:
            checked_options({"denoise": True})
        check_device(self.device)
        models = {"BUNDLE": bundle, "--model-path": self.model_path, "--hf-model-id": self.hf_model_id}
        given = [name for name, value in models.items() if value is not None]
        if len(given) > 1:
            raise InputError(f"expected one of {' and '.join(given)}, got both")
        model = self.model_path or self.hf_model_id
        if model is None:
            for name in ("lora_path", "cache_dir", "local_files_only"):
                if getattr(self, name):
                    flag = f"--{name.replace('_', '-')}"
                    raise InputError(f"{flag} needs --model-path or --hf-model-id")
            return bundle
        if self.model_path is not None and not user_path(self.model_path).is_dir():
            raise InputError(
                f"--model-path {self.model_path}: no such folder; for a hub id use --hf-model-id"
            )
        converted = pretrained_bundle(
            model, precision, self.lora_path, self.cache_dir, local_files_only=self.local_files_only
        )
        return str(converted)


def open_with_engine(
    bundle: str | None, engine: Engine, *, checkpoint: CheckpointArguments | None = None
) -> Bundle:
    """The open bundle, without its step models; a checkpoint is converted on first use.

    Raises BundleError, InputError, and the errors of a conversion.
    """
    check_engine(engine.backend, engine.threads, engine.units())
    if checkpoint is not None:
        bundle = checkpoint.bundle_of(bundle, engine.precision)
    found = open_bundle(bundle, engine.precision, verify=engine.verify)
    check_engine(engine.backend, engine.threads, engine.units(), found)
    return found


def load_voxcpm(bundle: Bundle, engine: Engine, note: Notes = lambda _: None) -> VoxCPM:
    """The bundle with its step models loaded. note: `from_bundle`'s `on_first_use`.

    Raises BundleError and InputError.
    """
    return VoxCPM.from_bundle(
        bundle,
        backend=cast("Backend", engine.backend),
        threads=engine.threads,
        compute_units=engine.units(),
        on_first_use=note,
    )


def input_file(path: str | None) -> str | None:
    """The file of a path argument; /dev/stdin for `-`."""
    return "/dev/stdin" if path == STANDARD_INPUT else path


def input_content(path: str) -> bytes:
    """The content of a text file, or of standard input for `-`. Raises InputError."""
    with naming_errors(f"{path}: cannot be read"):
        if path != STANDARD_INPUT:
            return read_bounded(user_path(path), MAX_TEXT_BYTES)
        stream = getattr(sys.stdin, "buffer", None)
        if stream is None or stream.closed:
            raise InputError("-: standard input is closed; pipe text into the command, or name a file")
        return read_at_most(stream, MAX_TEXT_BYTES)


def _utf8_file(path: str) -> str:
    with naming_errors(f"{path}: cannot be read"):
        return input_content(path).decode("utf-8-sig").strip()


def takes_groups(command: Callable[..., None], *, hidden: Collection[str] = ()) -> Callable[..., None]:
    """A decorator that replaces each dataclass parameter of a command by its fields, for typer.

    hidden: fields to leave out of the help.
    """
    # Not `get_type_hints`: before Python 3.11 it wraps the annotation of a default of None in Optional.
    declared = inspect.signature(command, eval_str=True).parameters
    groups: dict[str, Any] = {}
    parameters: list[inspect.Parameter] = []
    for name, parameter in declared.items():
        if dataclasses.is_dataclass(parameter.annotation):
            groups[name] = parameter.annotation
            parameters += _parameters(parameter.annotation, hidden)
        else:
            parameters.append(parameter)

    @functools.wraps(command)
    def wrapper(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in dataclasses.fields(group)})
        command(**given)

    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return wrapper


def _parameters(group: Any, hidden: Collection[str]) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    for field in dataclasses.fields(group):
        name, hint = field.name, hints[field.name]
        declared = hint.__metadata__[0]
        if isinstance(declared, Option):
            flags = declared.flags or (f"--{name.replace('_', '-')}",)
            panel, is_hidden = declared.panel, name in hidden
            option = typer.Option(*flags, help=declared.full_help, rich_help_panel=panel, hidden=is_hidden)
            hint = Annotated[hint.__origin__, option]
        default = inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default
        yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)
