"""`voxcpm-coreml benchmark`: how fast a bundle speaks on this machine, and what that takes."""

from __future__ import annotations

import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import typer
from pydantic import BaseModel, ConfigDict
from rich.console import Console
from rich.table import Table

from voxcpm_constants.architecture import Architecture
from voxcpm_constants.step_models import StepModel
from voxcpm_runtime.backends.choice import check_engine, choose_backend, chosen_device
from voxcpm_runtime.backends.core_ml.compute_units import AUTO
from voxcpm_runtime.backends.devices import CPU_DEVICE
from voxcpm_runtime.backends.machine import chip, cores, cpu_features
from voxcpm_runtime.commands.roofline import memory_bandwidth, weight_bytes_a_patch
from voxcpm_runtime.model.sequence import build_sequence
from voxcpm_runtime.options import SEGMENT_TOKENS
from voxcpm_runtime.text.words import checked_text
from voxcpm_runtime.voxcpm import VoxCPM

DEFAULT_TEXT = "By listening a few minutes a day, you will hear the difference between two voices."
_PREFILL_TOKENS = 128
# Seconds of counted calls of a figure, after which no other call is begun: so that slow machines end in time, too.
_FIGURE_SECONDS = 1.0
_SPEECH_SECONDS = 12.0
_SPEECHES = 3


class Measurement(BaseModel):
    """The figures of one bundle on one machine. Seconds are wall-clock time: medians, but one run for a start-up."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bundle: str
    precision: str
    machine: str
    processor: str
    cpu_features: tuple[str, ...]
    """Which of AVX2, AVX-512, VNNI, AMX and ARM's the processor has; empty where the system does not list them."""
    cores: int
    """Cores that this process may use."""
    threads: int | None
    """Threads of one operation that were asked for; None for ONNX Runtime's choice."""
    memory_bandwidth: float | None
    """Bytes a second that this machine's memory was read with: see `roofline.memory_bandwidth`. None where not the
    processor computes, so that its memory sets no limit."""
    weight_bytes_a_patch: int
    """Bytes of weights that a patch needs, as they are stored: see `roofline.weight_bytes_a_patch`."""
    min_patch_seconds: float | None
    """Seconds to read these bytes with that bandwidth: no patch of one utterance alone can be faster."""
    roofline_share: float | None
    """That time divided by the measured time of a patch: 1 is the limit."""
    startup_cold_seconds: float | None
    """From a new process to a voice that can speak, with nothing cached; None if it was not measured."""
    startup_warm_seconds: float
    step_milliseconds: dict[str, float]
    """Milliseconds of one call, by step model and length of its enumerated axis."""
    prefill_tokens_per_second: float
    """Both language models, in chunks."""
    patches_per_second: float
    batch: int
    """Utterances that the bundle was converted for."""
    batch_patches_per_second: float
    """Patches per second of `batch` utterances spoken at the same time, all together."""
    real_time_factor: float
    """Seconds of work for a second of speech, prefill and decoder included."""
    time_to_first_audio_seconds: float
    peak_memory_bytes: int


def measure(
    tts: VoxCPM,
    *,
    text: str,
    patches: int,
    repeats: int,
    threads: int | None,
    cold: bool,
    device: str = CPU_DEVICE,
) -> Measurement:
    """Time an open bundle. Raises what `speak` raises.

    text, patches: what to speak, and how many patches of it. repeats: timed calls of each step model at the most.
    threads, device: what it was opened with. cold: also time a start with an empty cache.
    """
    bundle, precision = tts.bundle.folder, tts.bundle.precision
    startups = _startup_seconds(bundle, precision, device, cold=cold)
    a = tts.bundle.architecture
    steps = {
        f"{name}[{length}]": 1e3 * seconds
        for name, declared in tts.bundle.manifest.step_models.items()
        for length, seconds in _step_seconds(tts, declared, repeats).items()
    }
    batch = tts.bundle.manifest.sizes.batch
    tokens = min(_PREFILL_TOKENS, tts.bundle.manifest.sizes.kv_length)
    sequence = build_sequence([1] * (tokens - 1), (a.patch_size, a.feat_dim))
    prefill = _median_seconds(lambda: tts.driver.prefill(sequence), repeats)
    first, whole = _streamed(tts, text, patches)
    batch_patches = batch * patches / (_batched(tts, text, patches, batch) if batch > 1 else whole)
    # Before the bandwidth is measured, which takes a gigabyte of its own.
    peak = peak_memory_bytes()
    weights = weight_bytes_a_patch(tts.bundle.manifest, precision)
    on_processor = device == CPU_DEVICE and choose_backend("auto", tts.bundle) == "portable"
    bandwidth = memory_bandwidth(threads or cores()) if on_processor else None
    minimum = None if bandwidth is None else weights / bandwidth
    return Measurement(
        bundle=bundle.name,
        precision=precision,
        machine=f"{platform.system()} {platform.machine()}",
        processor=chip(),
        cpu_features=cpu_features(),
        cores=cores(),
        threads=threads,
        memory_bandwidth=bandwidth,
        weight_bytes_a_patch=weights,
        min_patch_seconds=minimum,
        roofline_share=None if minimum is None else minimum / (whole / patches),
        startup_cold_seconds=startups[0],
        startup_warm_seconds=startups[1],
        step_milliseconds=steps,
        prefill_tokens_per_second=tokens / prefill,
        patches_per_second=patches / whole,
        batch=batch,
        batch_patches_per_second=batch_patches,
        real_time_factor=whole / (patches * a.patch_seconds),
        time_to_first_audio_seconds=first,
        peak_memory_bytes=peak,
    )


def peak_memory_bytes() -> int:
    """Largest resident size of this process so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # macOS counts bytes, Linux kibibytes.
    return peak if sys.platform == "darwin" else peak * 1024


def _step_seconds(tts: VoxCPM, declared: StepModel, repeats: int) -> dict[int, float]:
    """Median seconds of one call, by length of the enumerated axis (in tokens or patches)."""
    model, generator = tts.batch_driver.models[declared.name], np.random.default_rng(0)
    timed = {}
    for chunk, length in enumerate(_lengths(declared, tts.bundle.architecture)):
        inputs: dict[str, npt.NDArray[Any]] = {
            t.name: np.zeros(t.shape_at(chunk), np.int32)
            if t.dtype == "int32"
            else generator.standard_normal(t.shape_at(chunk), np.float32)
            for t in declared.inputs
        }
        state = model.new_state() if declared.state else None
        timed[length] = _median_seconds(lambda: model(inputs, state), repeats)  # noqa: B023 - called immediately
    return timed


def _lengths(declared: StepModel, a: Architecture) -> list[int]:
    """Lengths of the enumerated axis in tokens or patches."""
    axes = [axis for tensor in declared.inputs for axis in tensor.shape if isinstance(axis, tuple)]
    if not axes:
        return [1]
    unit = {"audio_vae_encoder": a.patch_input_samples, "audio_vae_decoder": a.patch_size}.get(
        declared.name, 1
    )
    return [length // unit for length in axes[0]]


def _streamed(tts: VoxCPM, text: str, patches: int) -> tuple[float, float]:
    """Median seconds to the first audio, and to the last."""
    firsts: list[float] = []

    def speak() -> None:
        began = time.perf_counter()
        chunks = tts.generate_streaming(text, seed=0, first_chunk_patches=1, **_one_utterance(patches))
        next(chunks)
        firsts.append(time.perf_counter() - began)
        for _ in chunks:
            pass

    whole = _timed(speak, _SPEECHES, _SPEECH_SECONDS)
    return statistics.median(firsts), whole


def _batched(tts: VoxCPM, text: str, patches: int, batch: int) -> float:
    """Median seconds for a whole batch."""
    given = {"text": text, "retry_badcase": False, **_one_utterance(patches)}
    speak = lambda: tts.batch([given | {"seed": seed} for seed in range(batch)])  # noqa: E731
    return _timed(speak, _SPEECHES, _SPEECH_SECONDS)


def _one_utterance(patches: int) -> dict[str, Any]:
    """Options for one utterance of exactly `patches` patches, whatever the text."""
    return {"min_len": patches, "max_len": patches, "segment_tokens": SEGMENT_TOKENS}


def _median_seconds(call: Callable[[], object], repeats: int) -> float:
    """Median seconds of a call, after one that is not counted."""
    call()
    return _timed(call, repeats, _FIGURE_SECONDS)


def _timed(call: Callable[[], object], maximum: int, enough: float) -> float:
    """Median seconds of one call or more: as many as `most`, until they have taken `enough` seconds together."""
    seconds: list[float] = []
    while not seconds or (len(seconds) < maximum and sum(seconds) < enough):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def _startup_seconds(
    bundle: str | Path, precision: str | None, device: str, *, cold: bool
) -> tuple[float | None, float]:
    """Seconds of a new process that opens the bundle: with an empty cache if `cold`, and with a filled one."""
    program = (
        "import sys; from voxcpm_runtime.voxcpm import VoxCPM; "
        "VoxCPM.from_bundle(sys.argv[1], precision=sys.argv[2] or None, device=sys.argv[3])"
    )
    command = [sys.executable, "-c", program, str(bundle), precision or "", device]

    def run(environment: dict[str, str]) -> float:
        began = time.perf_counter()
        subprocess.run(command, env=environment, check=True, capture_output=True)  # noqa: S603 - our own program
        return time.perf_counter() - began

    if not cold:
        run(dict(os.environ))
        return None, run(dict(os.environ))
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "VOXCPM_COREML_CACHE": cache}
        return run(environment), run(environment)


def benchmark(
    bundle: Annotated[
        str | None,
        typer.Argument(help="Folder of a bundle, or its hub id (org/name). Default: the built-in voice."),
    ] = None,
    precision: Annotated[
        str | None, typer.Option(help="int8, int4, fp16 or fp32; the first that is there by default.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    text: Annotated[str, typer.Option(help="What to say.")] = DEFAULT_TEXT,
    patches: Annotated[int, typer.Option(help="Patches to speak.", min=2)] = 24,
    repeats: Annotated[
        int, typer.Option(help="Timed calls of each step model at the most, within about a second.", min=1)
    ] = 20,
    threads: Annotated[int | None, typer.Option(help="Threads of one operation (portable).")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda[:N] or tensorrt[:N] (portable).")] = CPU_DEVICE,
    cold: Annotated[bool, typer.Option(help="Also start with an empty cache of lowered graphs.")] = True,
) -> None:
    """Time a bundle: each step model, prefill, speech, start-up, memory."""
    check_engine("auto", threads, AUTO, device=device)
    checked_text(text, "text")
    # Opened before any start is timed: a bad bundle gives a one-line error, not a failed child process.
    tts = VoxCPM.from_bundle(bundle, precision=precision, threads=threads, device=device)
    # Refuses what cannot be spoken before minutes of measuring.
    tts.plan(text, **_one_utterance(patches))
    device = chosen_device(device, choose_backend("auto", tts.bundle))
    measured = measure(
        tts, text=text, patches=patches, repeats=repeats, threads=threads, cold=cold, device=device
    )
    if json:
        typer.echo(measured.model_dump_json(indent=1))
        return
    table = Table("figure", "value", title=_title(measured))
    for name, milliseconds in measured.step_milliseconds.items():
        table.add_row(name, f"{milliseconds:.1f} ms")
    for name in ("startup_cold_seconds", "startup_warm_seconds", "time_to_first_audio_seconds"):
        seconds = getattr(measured, name)
        table.add_row(
            name.removesuffix("_seconds").replace("_", " "),
            "not measured" if seconds is None else f"{seconds:.2f} s",
        )
    table.add_row("prefill", f"{measured.prefill_tokens_per_second:.0f} tokens/s")
    table.add_row("speech", f"{measured.patches_per_second:.2f} patches/s")
    if measured.batch > 1:
        table.add_row(f"{measured.batch} utterances", f"{measured.batch_patches_per_second:.2f} patches/s")
    table.add_row("real-time factor", f"{measured.real_time_factor:.2f}")
    table.add_row("peak memory", f"{measured.peak_memory_bytes / 1e9:.2f} GB")
    table.add_row("weights a patch", f"{measured.weight_bytes_a_patch / 1e9:.2f} GB")
    if measured.memory_bandwidth and measured.min_patch_seconds and measured.roofline_share:
        table.add_row("memory read", f"{measured.memory_bandwidth / 1e9:.1f} GB/s")
        table.add_row("least time a patch", f"{1e3 * measured.min_patch_seconds:.0f} ms")
        table.add_row("share of that limit", f"{measured.roofline_share:.0%}")
    Console().print(table)


def _title(measured: Measurement) -> str:
    features = f" ({', '.join(measured.cpu_features)})" if measured.cpu_features else ""
    threads = "threads by default" if measured.threads is None else f"{measured.threads} threads"
    return (
        f"{measured.bundle}, {measured.precision}\n{measured.machine}, {measured.processor}{features}, "
        f"{measured.cores} cores, {threads}"
    )
