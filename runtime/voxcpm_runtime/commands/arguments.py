"""Arguments and options that commands share: each is declared here, once, with its default and its help."""

from __future__ import annotations

import functools
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from voxcpm_constants.errors import InputError, os_reason

if TYPE_CHECKING:
    from voxcpm_runtime.voices.voice import Voice as KeptVoice

_voice = functools.partial(typer.Option, rich_help_panel="Voice")
_speech = functools.partial(typer.Option, rich_help_panel="Speech")
_engine = functools.partial(typer.Option, rich_help_panel="Bundle and machine")

BundleArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="BUNDLE", help="Folder of a bundle, or its hub id (org/name). Default: a small voice."
    ),
]
Control = Annotated[
    str | None,
    _voice(
        help='Voice or style in words, as "warm, slow"; it goes before the text in parentheses (VoxCPM2).'
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no last line.")]


@dataclass(frozen=True)
class Words:
    """What to say."""

    text: Annotated[str | None, typer.Option("--text", "-t", help="What to say.")] = None
    text_file: Annotated[
        str | None, typer.Option(help="File with what to say, UTF-8; - is standard input.")
    ] = None

    def read(self) -> str:
        """The text, paragraphs and all. Raises InputError for none, for both, and for a file without UTF-8 words."""
        from voxcpm_runtime.speech.request import checked_text

        if (self.text is None) == (self.text_file is None):
            raise InputError("expected one of --text and --text-file")
        if self.text_file is None:
            return checked_text(self.text, "text")
        return checked_text(_utf8_file(self.text_file), f"text of {self.text_file}")


@dataclass(frozen=True)
class Delivery:
    """Where the speech goes, and how it is made."""

    output: Annotated[
        str,
        typer.Option(
            "--output", "-o",
            help="Audio file; its ending chooses the format. - is raw 16-bit PCM on standard output, as it is spoken.",
        ),
    ] = "out.wav"  # fmt: skip
    seed: Annotated[int | None, typer.Option(help="Same seed, same speech. Default: a fresh one.")] = None
    parallel_segments: Annotated[
        int, typer.Option(help="Segments of a long text at once; needs a bundle converted with --batch.")
    ] = 1
    keep_partial: Annotated[
        bool, typer.Option("--keep-partial", help="After Ctrl-C write what was spoken until then.")
    ] = False
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no last line.")] = False


@dataclass(frozen=True)
class Voice:
    """In whose voice: none of these is the checkpoint's own."""

    voice: Annotated[
        str | None, _voice("--voice", "-v", help="One of `voices list`, or the path of a voice's file.")
    ] = None

    prompt: Annotated[
        str | None, _voice("--prompt", "--prompt-audio", "-pa", help="Audio to continue in the same voice.")
    ] = None
    prompt_text: Annotated[
        str | None, _voice("--prompt-text", "-pt", help="What is said in the prompt, word for word.")
    ] = None
    prompt_file: Annotated[
        str | None, _voice(help="File with what is said in the prompt, UTF-8; instead of --prompt-text.")
    ] = None
    reference: Annotated[
        str | None,
        _voice("--reference", "--reference-audio", "-ra", help="Audio of a voice to speak with (VoxCPM2)."),
    ] = None
    control: Control = None

    @property
    def given(self) -> bool:
        """Whether there is a voice or a recording."""
        return any(part is not None for part in (self.voice, self.prompt, self.reference))

    def kept(self) -> KeptVoice | None:
        """The voice of --voice. Raises InputError for one that is not there, or beside recordings."""
        from voxcpm_runtime.voices.store import VoiceStore

        if self.voice is None:
            return None
        if self.prompt is not None or self.reference is not None:
            raise InputError("--voice takes the place of --prompt and --reference: give one of them")
        return VoiceStore().load(self.voice)

    def check_files(self) -> None:
        """Raises InputError for a recording that is not there."""
        for what, path in (("prompt audio", self.prompt), ("reference audio", self.reference)):
            if path is not None and not Path(path).expanduser().exists():
                raise InputError(f"{what} {path}: no such file")

    def transcript(self) -> str | None:
        """What is said in the prompt.

        Raises InputError for a prompt or a transcript on its own, for two transcripts and for a file without UTF-8.
        """
        if self.prompt_text is not None and self.prompt_file is not None:
            raise InputError("expected one of --prompt-text and --prompt-file, got both")
        transcript = self.prompt_text if self.prompt_file is None else _utf8_file(self.prompt_file)
        if (self.prompt is None) != (transcript is None):
            given, lacking = (
                ("transcript", "audio (--prompt)")
                if self.prompt is None
                else ("audio", "transcript (--prompt-text or --prompt-file)")
            )
            raise InputError(
                f"a prompt is audio and its transcript together: got the {given} without the {lacking}"
            )
        return transcript


@dataclass(frozen=True)
class Knobs:
    """The fields of `GenerationOptions`, with its defaults; a test holds that, as importing it would take numpy."""

    cfg_value: Annotated[float, _speech(help="Guidance, 0.1 to 10.")] = 2.0
    inference_timesteps: Annotated[int, _speech(help="Euler steps of a patch, 1 to 100.")] = 10
    temperature: Annotated[float, _speech(help="Deviation of the noise that a patch starts from.")] = 1.0
    sway_sampling_coef: Annotated[
        float, _speech(help="How much denser Euler steps are near the noise, -1 to 1.75.")
    ] = 1.0
    use_cfg_zero_star: Annotated[
        bool,
        _speech(
            "--cfg-zero-star/--no-cfg-zero-star", help="No velocity in the first steps, projected guidance."
        ),
    ] = True
    min_len: Annotated[int, _speech(help="Least patches.")] = 2
    max_len: Annotated[int | None, _speech(help="Most patches. Default: as the text needs.")] = None
    retry_badcase: Annotated[
        bool,
        _speech("--retry/--no-retry", help="Try the next seed when the speech is too long for its text."),
    ] = True
    retry_badcase_max_times: Annotated[int, _speech("--retry-times", help="Attempts in all.")] = 3
    retry_badcase_ratio_threshold: Annotated[
        float, _speech("--retry-ratio", help="Patches per text token from which speech is too long.")
    ] = 6.0
    segment_tokens: Annotated[
        int | None,
        _speech(
            help="Most text tokens of one utterance; a longer text is spoken in segments. "
            "Default: 200, or 80 in a voice of letters as the built-in one."
        ),
    ] = None
    paragraph_pause: Annotated[float, _speech(help="Seconds between paragraphs of such a text.")] = 0.6
    normalize: Annotated[
        bool, _speech("--normalize", help="Write numbers, dates and symbols in words (extra normalize).")
    ] = False
    trim_silence_vad: Annotated[
        bool, _speech("--trim-silence", help="Cut silence from both ends of prompt and reference.")
    ] = False

    def checked(self) -> dict[str, Any]:
        """Keyword arguments of `VoxCPM.speak`. Raises InputError for a value out of range."""
        from voxcpm_runtime.options import checked_options

        options = asdict(self)
        checked_options(**options)
        return options


@dataclass(frozen=True)
class Engine:
    """With which step models, and on what: keyword arguments of `VoxCPM.from_bundle`."""

    precision: Annotated[
        str | None, _engine(help="int8, int4, fp16 or fp32. Default: the first of these that the bundle has.")
    ] = None
    backend: Annotated[str, _engine(help="coreml, portable, or auto: Core ML on a Mac.")] = "auto"
    compute_units: Annotated[str, _engine(help="Core ML: all, cpu, cpu_and_gpu or cpu_and_ne.")] = "all"
    threads: Annotated[int | None, _engine(help="Threads of one operation (portable).")] = None
    verify: Annotated[bool, _engine("--verify", help="Hash every file of the bundle first.")] = False


def _utf8_file(path: str) -> str:
    try:
        raw = sys.stdin.buffer.read() if path == "-" else Path(path).expanduser().read_bytes()
        return raw.decode("utf-8-sig").strip()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({os_reason(error)})") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: expected UTF-8 text") from None
