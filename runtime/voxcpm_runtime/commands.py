"""The runtime's own commands: `generate` and `inspect`."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from voxcpm_constants.errors import InputError

if TYPE_CHECKING:
    from voxcpm_constants.manifest import Manifest
    from voxcpm_constants.step_models import StepModel
    from voxcpm_runtime.voxcpm import Progress, ProgressCallback


def generate(
    bundle: Annotated[
        str | None,
        typer.Argument(help="Folder of a bundle, or its hub id (org/name). Default: a small voice."),
    ] = None,
    text: Annotated[str | None, typer.Option(help="What to say.")] = None,
    text_file: Annotated[
        str | None, typer.Option(help="File with what to say, UTF-8; - is standard input.")
    ] = None,
    prompt: Annotated[str | None, typer.Option(help="Audio to continue in the same voice.")] = None,
    prompt_text: Annotated[
        str | None, typer.Option(help="What is said in the prompt, word for word.")
    ] = None,
    reference: Annotated[str | None, typer.Option(help="Audio of a voice to speak with (VoxCPM2).")] = None,
    output: Annotated[
        str, typer.Option("--output", "-o", help="Audio file; its ending chooses the format.")
    ] = "out.wav",
    seed: Annotated[int | None, typer.Option(help="Same seed, same speech. Default: a fresh one.")] = None,
    cfg_value: Annotated[float, typer.Option(help="Guidance, 0.1 to 10.")] = 2.0,
    inference_timesteps: Annotated[int, typer.Option(help="Euler steps of a patch, 1 to 100.")] = 10,
    min_len: Annotated[int, typer.Option(help="Least patches.")] = 2,
    max_len: Annotated[int | None, typer.Option(help="Most patches. Default: as the text needs.")] = None,
    retry: Annotated[
        bool, typer.Option(help="Try the next seed when the speech is too long for its text.")
    ] = True,
    precision: Annotated[
        str | None, typer.Option(help="int8, fp16 or fp32. Default: the first the bundle has.")
    ] = None,
    backend: Annotated[str, typer.Option(help="coreml, portable, or auto: Core ML on a Mac.")] = "auto",
    compute_units: Annotated[str, typer.Option(help="Core ML: all, cpu, cpu_and_gpu or cpu_and_ne.")] = "all",
    threads: Annotated[int | None, typer.Option(help="Threads of one operation (portable).")] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Hash every file of the bundle first.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no last line.")] = False,
) -> None:
    """Speak a text with a bundle into an audio file."""
    from voxcpm_runtime.audio_file import check_output_path, write_audio
    from voxcpm_runtime.bundle import locate_bundle
    from voxcpm_runtime.options import GenerationOptions
    from voxcpm_runtime.voxcpm import VoxCPM

    # What can be refused without opening the bundle is refused first.
    target = check_output_path(output)
    words = _text(text, text_file)
    options: dict[str, Any] = {
        "cfg_value": cfg_value,
        "inference_timesteps": inference_timesteps,
        "min_len": min_len,
        "max_len": max_len,
        "retry_badcase": retry,
    }
    GenerationOptions(**options)
    with _converting(shown=bundle is None and not quiet):
        folder = locate_bundle(bundle, precision)
    voice = VoxCPM.from_bundle(folder, precision, backend, threads, verify, compute_units)  # type: ignore[arg-type]
    with _progress_line(shown=not quiet) as progress:
        speech = voice.speak(words, prompt, prompt_text, reference, seed=seed, progress=progress, **options)
    write_audio(target, speech.audio, speech.sample_rate)
    if not quiet:
        typer.echo(
            f"{target}: {speech.audio_seconds:.2f} s of speech in {speech.elapsed_seconds:.2f} s "
            f"(real-time factor {speech.real_time_factor:.2f}), seed {speech.seed}"
        )


def inspect(
    bundle: Annotated[
        str | None,
        typer.Argument(help="Folder of a bundle, or its hub id (org/name). Default: a small voice."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The manifest's facts as JSON.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Hash every file as well.")] = False,
) -> None:
    """Tell what a bundle is: source, sizes, precisions, and the inputs and outputs of its step models."""
    from voxcpm_constants.manifest import Manifest, check_files
    from voxcpm_runtime.bundle import locate_bundle

    folder = locate_bundle(bundle)
    manifest = Manifest.read(folder)
    check_files(folder, manifest.files, digests=verify)
    facts = describe_manifest(manifest)
    typer.echo(json.dumps(facts, indent=1) if as_json else "\n".join(_as_text(facts)))


def describe_manifest(manifest: Manifest) -> dict[str, Any]:
    """What `inspect` shows, ready for JSON; sizes of files in bytes, rates in Hz."""
    a = manifest.architecture
    return {
        "architecture": a.architecture,
        "source": manifest.source.model_dump(),
        "schema_version": manifest.schema_version,
        "target": manifest.target,
        "input_sample_rate": a.input_sample_rate,
        "output_sample_rate": a.output_sample_rate,
        "patch_seconds": a.patch_seconds,
        "sizes": manifest.sizes.model_dump(),
        "precisions": {precision: _bytes_below(manifest, precision) for precision in manifest.precisions},
        "constants": _bytes_below(manifest, "constants"),
        "tools": manifest.tools,
        "step_models": {name: _tensors(model) for name, model in manifest.step_models.items()},
    }


def _bytes_below(manifest: Manifest, folder: str) -> int:
    return sum(record.bytes for path, record in manifest.files.items() if path.startswith(f"{folder}/"))


def _tensors(model: StepModel) -> dict[str, dict[str, Any]]:
    kinds = {"inputs": model.inputs, "outputs": model.outputs, "state": model.state}
    return {
        kind: {t.name: [*t.shape, t.dtype] for t in tensors} for kind, tensors in kinds.items() if tensors
    }


def _as_text(facts: dict[str, Any]) -> Iterator[str]:
    source, sizes = facts["source"], facts["sizes"]
    yield f"{facts['architecture']} from {source['checkpoint']} ({source['licence']}), target {facts['target']}"
    yield f"audio         {facts['input_sample_rate']} Hz in, {facts['output_sample_rate']} Hz out"
    yield f"patch         {facts['patch_seconds'] * 1000:.0f} ms"
    yield f"positions     {sizes['kv_length']}, in chunks of {_joined(sizes['prefill_chunks'])}"
    yield "precisions    " + _joined(
        f"{name} {size / 1e6:.1f} MB" for name, size in facts["precisions"].items()
    )
    yield f"constants     {facts['constants'] / 1e6:.1f} MB"
    yield f"tools         {_joined(f'{name} {version}' for name, version in facts['tools'].items())}"
    for name, kinds in facts["step_models"].items():
        yield name
        for kind in ("inputs", "outputs"):
            for tensor, (*shape, dtype) in kinds[kind].items():
                yield f"  {kind[:-1]:<8} {tensor:<14} {_shape(shape)} {dtype}"
        if state := kinds.get("state"):
            names = list(state)
            yield f"  state    {len(names)} tensors, {names[0]} … {names[-1]}"


def _shape(shape: list[int | list[int] | tuple[int, ...]]) -> str:
    return "×".join(str(axis) if isinstance(axis, int) else "|".join(map(str, axis)) for axis in shape)


def _joined(items: Any) -> str:
    return ", ".join(map(str, items))


def _text(text: str | None, text_file: str | None) -> str:
    from voxcpm_runtime.request import normalized_text

    if (text is None) == (text_file is None):
        raise InputError("expected one of --text and --text-file")
    if text_file is None:
        return normalized_text(text or "", "text")
    try:
        raw = sys.stdin.buffer.read() if text_file == "-" else Path(text_file).read_bytes()
        return normalized_text(raw.decode("utf-8-sig").strip(), f"text of {text_file}")
    except OSError as error:
        raise InputError(f"{text_file}: cannot be read ({error.strerror or error})") from None
    except UnicodeDecodeError:
        raise InputError(f"{text_file}: expected UTF-8 text") from None


@contextlib.contextmanager
def _converting(*, shown: bool) -> Iterator[None]:
    from rich.console import Console

    message = "the small voice that comes along (converted when first used) …"
    with Console(stderr=True).status(message) if shown else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def _progress_line(*, shown: bool) -> Iterator[ProgressCallback | None]:
    """One line on standard error that says how far the speech is; nothing where that is no terminal."""
    if not shown:
        yield None
        return
    from rich.console import Console

    with Console(stderr=True).status("prefill …") as status:
        yield lambda progress: status.update(_progress_text(progress))


def _progress_text(progress: Progress) -> str:
    again = f"attempt {progress.attempt}: " if progress.attempt > 1 else ""
    return (
        f"{again}{progress.patches} patches, {progress.audio_seconds:.1f} s of speech, "
        f"real-time factor {progress.real_time_factor:.2f}"
    )
