"""The demonstration of `make demo`: convert the built-in voice's checkpoint, validate the bundle, and speak.

A speech recogniser transcribes the result, and a picture shows its waveform and spectrogram.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.markup import escape

from voxcpm_conversion.checkpoint import Checkpoint
from voxcpm_conversion.convert import convert
from voxcpm_conversion.default_bundle import DEFAULT_CHECKPOINT, SIZES
from voxcpm_runtime.audio.files import write_audio
from voxcpm_runtime.commands.status_line import status_line
from voxcpm_runtime.speech.results import Speech
from voxcpm_runtime.storage.whole_file import whole_file
from voxcpm_runtime.voxcpm import VoxCPM
from voxcpm_validation.listening.recognition import Recogniser, word_errors
from voxcpm_validation.validate import validate_bundle

_TEXT = "the river runs slowly to the sea. she sells fresh bread in the market. we walked home in the rain."
_MEL_BANDS = 80


def demo(
    output: Annotated[Path, typer.Option(help="Folder for the bundle, the speech and its picture.")] = Path(
        "demo"
    ),
    text: Annotated[str, typer.Option(help="Text to speak.")] = _TEXT,
    seed: Annotated[int, typer.Option(help="Seed of the noise.", min=0)] = 0,
) -> None:
    """Convert the built-in voice, validate the bundle, and speak."""
    console = Console()
    output.mkdir(parents=True, exist_ok=True)
    bundle = output / "bundle"
    console.print("[bold]1. Converting[/bold] the built-in voice's checkpoint into six step models")
    with status_line("") as note:
        convert(
            Checkpoint.open(str(DEFAULT_CHECKPOINT)),
            bundle,
            precisions=("fp16", "int8"),
            sizes=SIZES,
            overwrite=True,
            report=lambda model, stage, done, total: note(f"{model}: {stage}"),
        )
    console.print("[bold]2. Validating[/bold] against upstream's PyTorch code")
    with status_line("") as note:
        report = validate_bundle(bundle, str(DEFAULT_CHECKPOINT), patches=8, report=note)
    report.write(output)
    for step in report.steps:
        if step.arithmetic == "plain":
            console.print(f"   {step.step_model:18} {step.precision}  correlation {step.correlation:.6f}")
    for line in report.failures():
        console.print(f"   below its floor: {line}")
    console.print(f"   all figures: {output / 'validation.md'}")
    console.print("[bold]3. Speaking[/bold]", f"“{escape(text)}”")
    speech = VoxCPM.from_bundle(bundle).speak(text, seed=seed)
    write_audio(output / "speech.wav", speech.audio, speech.sample_rate)
    draw(speech, output / "speech.png")
    console.print(
        f"   {output / 'speech.wav'}: {speech.audio_seconds:.1f} s in {speech.elapsed_seconds:.1f} s "
        f"(real-time factor {speech.real_time_factor:.2f}); picture: {output / 'speech.png'}"
    )
    for line in heard_lines(text, speech):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def heard_lines(text: str, speech: Speech) -> list[str]:
    """Lines with what was asked and what a recogniser hears, and the word error rate; one line without the extra."""
    try:
        recogniser = Recogniser()
        heard = recogniser.transcribe(speech.audio, speech.sample_rate)
        errors = word_errors([text], [heard])
    except ModuleNotFoundError as error:
        return [f'   not heard by a recogniser: {error.name} is missing; pip install "voxcpm-coreml[listen]"']
    rate = f"word error rate {100 * errors.rate:.0f} % ({errors.errors} of {errors.words} words)"
    return [f"   asked: {text}", f"   heard: {heard}", f"   {rate}, by Whisper tiny.en"]


def draw(speech: Speech, path: Path) -> None:
    """Write a PNG with the waveform and the mel spectrogram of a speech."""
    from matplotlib.figure import Figure
    from transformers.audio_utils import mel_filter_bank, spectrogram, window_function

    rate, size = speech.sample_rate, 1024
    filters = mel_filter_bank(
        size // 2 + 1, _MEL_BANDS, 0.0, rate / 2, rate, norm="slaney", mel_scale="slaney"
    )
    mel = spectrogram(
        speech.audio,
        window_function(size),
        frame_length=size,
        hop_length=size // 4,
        mel_filters=filters,
        log_mel="dB",
    )
    figure = Figure(figsize=(9, 5), layout="constrained")
    wave, picture = figure.subplots(2, 1)
    wave.plot(np.arange(len(speech.audio)) / rate, speech.audio, linewidth=0.5)
    wave.set(xlim=(0, speech.audio_seconds), ylim=(-1, 1), ylabel="amplitude")
    picture.imshow(
        mel,
        origin="lower",
        aspect="auto",
        extent=(0, speech.audio_seconds, 0, _MEL_BANDS),
        vmin=mel.max() - 80,
    )
    picture.set(xlabel="seconds", ylabel="mel band")
    with whole_file(path) as file:
        figure.savefig(file, format="png", dpi=120)


if __name__ == "__main__":
    typer.run(demo)
