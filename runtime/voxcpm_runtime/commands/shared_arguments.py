"""Arguments and options that commands share, declared once with their default and help."""

from __future__ import annotations

import functools
import sys
from dataclasses import dataclass
from typing import Annotated

import typer

from voxcpm_constants.bounded_files import bounded, read_bounded
from voxcpm_constants.bounds import MAX_TEXT_BYTES
from voxcpm_constants.errors import InputError, os_reason
from voxcpm_constants.user_folders import user_path
from voxcpm_runtime.backends.choice import CPU_DEVICE
from voxcpm_runtime.backends.core_ml.compute_units import ComputeUnits, read_compute_units
from voxcpm_runtime.bundle.pretrained import Pretrained
from voxcpm_runtime.options import WITH_REFERENCE, Option, checked_options
from voxcpm_runtime.text.input_text import checked_text
from voxcpm_runtime.voices.recordings import Recordings
from voxcpm_runtime.voices.store import VoiceStore

_engine = functools.partial(typer.Option, rich_help_panel="Bundle and machine")

BundleArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="BUNDLE",
        help="Folder of a bundle, or its hub id (org/name). Default: the built-in voice.",
    ),
]
STANDARD_INPUT = "-"
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress and no summary.")]


@dataclass(frozen=True)
class Words:
    """The text to speak, given directly or in a file."""

    text: Annotated[str | None, typer.Option("--text", "-t", help="Text to speak.")] = None
    text_file: Annotated[str | None, typer.Option(help="UTF-8 file with the text; - is standard input.")] = (
        None
    )

    def read(self) -> str:
        """The text with its paragraphs. Raises InputError unless one is given, and for a file that is not UTF-8."""
        if (self.text is None) == (self.text_file is None):
            raise InputError("expected one of --text and --text-file")
        if self.text_file is None:
            return checked_text(self.text, "text")
        return checked_text(_utf8_file(self.text_file), f"text of {self.text_file}")


@dataclass(frozen=True)
class Delivery:
    """The output file, and options of one command run."""

    output: Annotated[
        str,
        typer.Option(
            "--output", "-o",
            help="Audio file; its suffix selects the format. - streams raw 16-bit PCM to standard output.",
        ),
    ] = "out.wav"  # fmt: skip
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the output even if it is read-only.")
    ] = False
    seed: Annotated[
        int | None, typer.Option(help="The same seed gives the same speech. Default: random.")
    ] = None
    keep_partial: Annotated[
        bool, typer.Option("--keep-partial", help="After Ctrl-C, write the speech so far.")
    ] = False
    quiet: Quiet = False


@dataclass(frozen=True)
class RecordingArguments:
    """Recordings of the voice to speak in. A batch's JSONL has the same keys, except for `prompt_file`."""

    prompt: Annotated[
        str | None,
        Option("Audio to continue in the same voice.", flags=("--prompt", "--prompt-audio", "-pa")),
    ] = None
    prompt_text: Annotated[
        str | None,
        Option("Transcript of the prompt, word for word.", flags=("--prompt-text", "-pt")),
    ] = None
    prompt_file: Annotated[
        str | None, Option("UTF-8 file with the transcript of the prompt, instead of --prompt-text.")
    ] = None
    reference: Annotated[
        str | None,
        Option(
            "Audio of a voice to speak with.",
            flags=("--reference", "--reference-audio", "-ra"),
            generations=WITH_REFERENCE,
        ),
    ] = None

    def transcript(self) -> str | None:
        """The prompt's transcript. Raises InputError for two transcripts and for a file that is not UTF-8."""
        if self.prompt_text is not None and self.prompt_file is not None:
            raise InputError("expected one of --prompt-text and --prompt-file, got both")
        return self.prompt_text if self.prompt_file is None else _utf8_file(self.prompt_file)

    def files(self) -> list[str | None]:
        """The files of the recordings; None for one that is not given."""
        return [self.prompt, input_file(self.prompt_file), self.reference]


@dataclass(frozen=True)
class VoiceArguments(RecordingArguments):
    """The voice to speak in; without any of these, the checkpoint's own."""

    voice: Annotated[
        str | None,
        Option("Name of a voice (see `voices list`), or path of a voice file.", flags=("--voice", "-v")),
    ] = None
    control: Annotated[
        str | None,
        Option(
            'Voice or style in words, such as "warm, slow"; prepended to the text in parentheses.',
            generations=WITH_REFERENCE,
        ),
    ] = None

    def recordings(self) -> Recordings:
        """The recordings, or the voice instead.

        Raises InputError for a prompt without a transcript or the reverse, for recordings together with a voice, and
        for a voice that does not exist.
        """
        given = Recordings(self.prompt, self.transcript(), self.reference)
        return given.in_voice(self.voice)

    def files(self) -> list[str | None]:
        """The files of the voice; None for one that is not given."""
        voice = None if self.voice is None else str(VoiceStore().located(self.voice))
        return [*super().files(), voice]


@dataclass(frozen=True)
class Engine:
    """The step models to load and where to run them: keyword arguments of `VoxCPM.from_bundle`."""

    precision: Annotated[
        str | None, _engine(help="int8, int4, fp16 or fp32. Default: the first of these that the bundle has.")
    ] = None
    backend: Annotated[
        str, _engine(help="coreml, coreai, portable, or auto: the best one that is available.")
    ] = "auto"
    compute_units: Annotated[
        list[str] | None,
        _engine(
            metavar="[NAME=]UNIT",
            help="Core ML: auto, all, cpu, cpu_and_gpu or cpu_and_ne; with NAME= for one step model (repeatable).",
        ),
    ] = None
    threads: Annotated[int | None, _engine(help="Threads per operation (portable).")] = None
    device: Annotated[
        str,
        _engine(metavar="DEVICE", help="auto, cpu, cuda[:N] or tensorrt[:N] (portable)."),
    ] = CPU_DEVICE
    verify: Annotated[bool, _engine("--verify", help="Hash every file of the bundle before it is used.")] = (
        False
    )

    def units(self) -> ComputeUnits:
        """The compute units. Raises InputError for contradictions."""
        return read_compute_units(self.compute_units or ())


_unchanged = functools.partial(typer.Option, hidden=True, help="Accepted without effect.")


@dataclass(frozen=True)
class CheckpointArguments:
    """A checkpoint instead of a bundle, with upstream's flags."""

    model_path: Annotated[
        str | None, _engine(help="Folder of a checkpoint instead of BUNDLE; converted when it is first used.")
    ] = None
    hf_model_id: Annotated[
        str | None, _engine(help="Hub id of a checkpoint instead of BUNDLE; converted when it is first used.")
    ] = None
    lora_path: Annotated[
        str | None, _engine(help="Folder or weight file of a LoRA to merge into the checkpoint.")
    ] = None
    cache_dir: Annotated[str | None, _engine(help="With --hf-model-id: folder for downloads.")] = None
    local_files_only: Annotated[
        bool,
        _engine(
            "--local-files-only", help="With --hf-model-id: use earlier downloads only, without the network."
        ),
    ] = False
    denoise: Annotated[
        bool, typer.Option("--denoise", hidden=True, help="Not offered: clean the recording beforehand.")
    ] = False
    no_denoiser: Annotated[bool, _unchanged("--no-denoiser")] = False
    no_optimize: Annotated[bool, _unchanged("--no-optimize")] = False
    zipenhancer_path: Annotated[str | None, _unchanged()] = None

    def chosen(self, bundle: str | None) -> Pretrained | None:
        """The checkpoint; None without one. Raises InputError for contradictory flags."""
        checked_options({"denoise": self.denoise})
        models = {"BUNDLE": bundle, "--model-path": self.model_path, "--hf-model-id": self.hf_model_id}
        given = [name for name, value in models.items() if value is not None]
        if len(given) > 1:
            raise InputError(f"expected one of {' and '.join(given)}, got both")
        model = self.model_path or self.hf_model_id
        if model is None:
            dependent = {
                "--lora-path": self.lora_path,
                "--cache-dir": self.cache_dir,
                "--local-files-only": self.local_files_only or None,
            }
            for name, value in dependent.items():
                if value is not None:
                    raise InputError(f"{name} needs --model-path or --hf-model-id")
            return None
        if self.model_path is not None and not user_path(self.model_path).is_dir():
            raise InputError(
                f"--model-path {self.model_path}: no such folder; for a hub id use --hf-model-id"
            )
        return Pretrained(model, self.cache_dir, self.local_files_only, self.lora_path)


def input_file(path: str | None) -> str | None:
    """The file of a path argument; /dev/stdin for `-`."""
    return "/dev/stdin" if path == STANDARD_INPUT else path


def standard_input() -> bytes:
    """All of standard input. Raises InputError if it is closed, OSError if it cannot be read or is too long."""
    stream = getattr(sys.stdin, "buffer", None)
    if stream is None or stream.closed:
        raise InputError("-: standard input is closed; pipe text into the command, or name a file")
    return bounded(stream, MAX_TEXT_BYTES)


def _utf8_file(path: str) -> str:
    try:
        raw = standard_input() if path == STANDARD_INPUT else read_bounded(user_path(path), MAX_TEXT_BYTES)
        return raw.decode("utf-8-sig").strip()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({os_reason(error)})") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: expected UTF-8 text") from None
