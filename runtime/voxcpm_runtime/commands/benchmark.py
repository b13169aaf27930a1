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
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import typer
from pydantic import BaseModel, ConfigDict
from rich.console import Console
from rich.table import Table

from voxcpm_constants.manifest import Manifest
from voxcpm_constants.step_models import (
    AUDIO_VAE_DECODER,
    AUDIO_VAE_ENCODER,
    BASE_LM_STEP,
    FEAT_ENCODER,
    LOCDIT_STEP,
    RESIDUAL_LM_STEP,
    Precision,
    StepModel,
    zero_velocity_steps,
)
from voxcpm_runtime.backends.choice import CPU_DEVICE, check_engine, choose_backend, chosen_device
from voxcpm_runtime.backends.core_ml.compute_units import AUTO
from voxcpm_runtime.backends.machine import chip, cores, cpu_features
from voxcpm_runtime.model.sequence import build_sequence
from voxcpm_runtime.options import SEGMENT_TOKENS, GenerationOptions
from voxcpm_runtime.text.input_text import checked_text
from voxcpm_runtime.voxcpm import VoxCPM

DEFAULT_TEXT = "By listening a few minutes a day, you will hear the difference between two voices."
_PREFILL_TOKENS = 128
# A figure is the median of calls within this many seconds, so that slow machines finish in time as well.
_FIGURE_SECONDS = 1.0
_SPEECH_SECONDS = 12.0
_SPEECHES = 3
_BANDWIDTH_BYTES = 1 << 30
"""Four times the largest common caches."""
_BANDWIDTH_PASSES = 5


class Measurement(BaseModel):
    """The figures of one bundle on one machine: medians of wall-clock time, except for start-up, which runs once."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bundle: str
    precision: str
    machine: str
    processor: str
    cpu_features: tuple[str, ...]
    """The vector extensions of the processor (AVX2, AVX-512, VNNI, AMX, ARM's); empty if the system lists none."""
    cores: int
    """Cores that this process may use."""
    threads: int | None
    """Threads per operation; None for ONNX Runtime's default."""
    memory_bandwidth: float | None
    """Read bandwidth in bytes/s; None if another device computes, which has its own memory."""
    weight_bytes_a_patch: int
    """Bytes of stored weights that one patch reads."""
    min_patch_seconds: float | None
    """Seconds to read these bytes at that bandwidth: a lower bound for a patch of a single utterance."""
    roofline_share: float | None
    """That time divided by the measured time of a patch: 1 is the limit."""
    startup_cold_seconds: float | None
    """From a new process to a loaded bundle, with an empty cache; None if it was not measured."""
    startup_warm_seconds: float
    step_milliseconds: dict[str, float]
    """Milliseconds per call, by step model and length of its enumerated axis."""
    prefill_tokens_per_second: float
    """Both language models, in chunks."""
    patches_per_second: float
    real_time_factor: float
    """Seconds of work per second of speech, with prefill and decoding."""
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

    text, patches: what to speak, and how many patches of it. repeats: maximum number of timed calls of each step model.
    threads, device: those it was opened with. cold: also time a start with an empty cache.
    """
    bundle, precision = tts.bundle.folder, tts.bundle.precision
    startups = _startup_seconds(bundle, precision, device, cold=cold)
    a = tts.bundle.architecture
    steps = {
        f"{name}[{length}]": 1e3 * seconds
        for name, declared in tts.bundle.manifest.step_models.items()
        for length, seconds in _step_seconds(tts, declared, repeats).items()
    }
    tokens = min(_PREFILL_TOKENS, tts.bundle.manifest.sizes.kv_length)
    sequence = build_sequence([1] * (tokens - 1), (a.patch_size, a.feat_dim))
    prefill = _median_seconds(lambda: tts.driver.prefill(sequence), repeats)
    first, whole = _streamed(tts, text, patches)
    # Before the bandwidth is measured, which takes a gigabyte itself.
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
        real_time_factor=whole / (patches * a.patch_seconds),
        time_to_first_audio_seconds=first,
        peak_memory_bytes=peak,
    )


def calls_a_patch(steps: int = GenerationOptions().inference_timesteps) -> dict[str, int]:
    """Calls of each step model for one patch of `steps` Euler steps, by name.

    Classifier-free guidance adds no calls, as both rows are one batch. CFG-zero* skips the first steps.
    """
    return {
        LOCDIT_STEP: steps - zero_velocity_steps(steps),
        AUDIO_VAE_DECODER: 1,
        FEAT_ENCODER: 1,
        BASE_LM_STEP: 1,
        RESIDUAL_LM_STEP: 1,
    }


def weight_bytes_a_patch(manifest: Manifest, precision: Precision) -> int:
    """Bytes that one patch reads if each call reads the stored weights once.

    A backend that unpacks weights reads more: ONNX Runtime computes fp16 packages in float32, with twice the bytes.
    """
    total = 0
    for name, calls in calls_a_patch().items():
        for part in manifest.parts(name):
            package = f"{manifest.package_path(precision, part.name)}/"
            stored = sum(file.bytes for path, file in manifest.files.items() if path.startswith(package))
            total += calls * stored
    return total


def memory_bandwidth(threads: int) -> float:
    """Read bandwidth of `threads` threads together in bytes/s: the best of several passes over a buffer of 1 GiB.

    Each thread searches its part for the maximum, which takes little more time than reading it.
    """
    parts = np.array_split(np.ones(_BANDWIDTH_BYTES // 8, np.int64), threads)
    seconds = []
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(_BANDWIDTH_PASSES):
            began = time.perf_counter()
            list(pool.map(np.max, parts))
            seconds.append(time.perf_counter() - began)
    return _BANDWIDTH_BYTES / min(seconds)


def peak_memory_bytes() -> int:
    """Peak resident memory of this process, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # macOS counts bytes, Linux kibibytes.
    return peak if sys.platform == "darwin" else peak * 1024


def _step_seconds(tts: VoxCPM, declared: StepModel, repeats: int) -> dict[int, float]:
    """Median seconds of one call, by length of the enumerated axis (in tokens or patches)."""
    model, generator = tts.driver.models[declared.name], np.random.default_rng(0)
    timed = {}
    a = tts.bundle.architecture
    unit = a.patch_input_samples if declared.name == AUDIO_VAE_ENCODER else 1
    for chunk, elements in enumerate(declared.chunk_lengths if declared.chunk_count > 1 else (unit,)):
        inputs: dict[str, npt.NDArray[Any]] = {
            t.name: np.zeros(t.shape_at(chunk), np.int32)
            if t.dtype == "int32"
            else generator.standard_normal(t.shape_at(chunk), np.float32)
            for t in declared.inputs
        }
        state = model.new_state() if declared.state else None
        timed[elements // unit] = _median_seconds(lambda: model(inputs, state), repeats)  # noqa: B023 - called immediately
    return timed


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


def _one_utterance(patches: int) -> dict[str, Any]:
    """Options for one utterance of exactly `patches` patches, whatever the text."""
    return {"min_len": patches, "max_len": patches, "segment_tokens": SEGMENT_TOKENS}


def _median_seconds(call: Callable[[], object], repeats: int) -> float:
    """Median seconds of a call, after a warm-up call."""
    call()
    return _timed(call, repeats, _FIGURE_SECONDS)


def _timed(call: Callable[[], object], maximum: int, enough: float) -> float:
    """Median seconds of at least one and at most `maximum` calls, until they have taken `enough` seconds together."""
    seconds: list[float] = []
    while not seconds or (len(seconds) < maximum and sum(seconds) < enough):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def _startup_seconds(
    bundle: str | Path, precision: str | None, device: str, *, cold: bool
) -> tuple[float | None, float]:
    """Seconds in which a new process opens the bundle: with an empty cache (if `cold`), and with a filled one."""
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
        str | None,
        typer.Option(help="int8, int4, fp16 or fp32. Default: the first of these that the bundle has."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    text: Annotated[str, typer.Option(help="What to say.")] = DEFAULT_TEXT,
    patches: Annotated[int, typer.Option(help="Patches to speak.", min=2)] = 24,
    repeats: Annotated[
        int,
        typer.Option(help="Maximum number of timed calls of each step model, within about a second.", min=1),
    ] = 20,
    threads: Annotated[int | None, typer.Option(help="Threads per operation (portable).")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda[:N] or tensorrt[:N] (portable).")] = CPU_DEVICE,
    cold: Annotated[bool, typer.Option(help="Also time a start with an empty cache.")] = True,
) -> None:
    """Time a bundle: each step model, prefill, speech and start-up; and measure its memory."""
    check_engine("auto", threads, AUTO, device=device)
    checked_text(text, "text")
    # Opened before start-up is timed, so that a bad bundle is a one-line error, not a failed child process.
    tts = VoxCPM.from_bundle(bundle, precision=precision, threads=threads, device=device)
    # Raises for a text that cannot be spoken, before minutes of measuring.
    tts.plan(text, **_one_utterance(patches))
    device = chosen_device(device, choose_backend("auto", tts.bundle))
    measured = measure(
        tts, text=text, patches=patches, repeats=repeats, threads=threads, cold=cold, device=device
    )
    if json:
        typer.echo(measured.model_dump_json(indent=1))
        return
    table = Table("figure", "value", title=_title(measured))
    for name, value in _rows(measured):
        table.add_row(name, value)
    Console().print(table)


def _rows(measured: Measurement) -> Iterator[tuple[str, str]]:
    for name, milliseconds in measured.step_milliseconds.items():
        yield name, f"{milliseconds:.1f} ms"
    cold = measured.startup_cold_seconds
    yield "startup cold", "not measured" if cold is None else f"{cold:.2f} s"
    yield "startup warm", f"{measured.startup_warm_seconds:.2f} s"
    yield "time to first audio", f"{measured.time_to_first_audio_seconds:.2f} s"
    yield "prefill", f"{measured.prefill_tokens_per_second:.0f} tokens/s"
    yield "speech", f"{measured.patches_per_second:.2f} patches/s"
    yield "real-time factor", f"{measured.real_time_factor:.2f}"
    yield "peak memory", f"{measured.peak_memory_bytes / 1e9:.2f} GB"
    yield "weights a patch", f"{measured.weight_bytes_a_patch / 1e9:.2f} GB"
    if measured.memory_bandwidth and measured.min_patch_seconds and measured.roofline_share:
        yield "memory read", f"{measured.memory_bandwidth / 1e9:.1f} GB/s"
        yield "minimum time a patch", f"{1e3 * measured.min_patch_seconds:.0f} ms"
        yield "share of that limit", f"{measured.roofline_share:.0%}"


def _title(measured: Measurement) -> str:
    features = f" ({', '.join(measured.cpu_features)})" if measured.cpu_features else ""
    threads = "default threads" if measured.threads is None else f"{measured.threads} threads"
    return (
        f"{measured.bundle}, {measured.precision}\n{measured.machine}, {measured.processor}{features}, "
        f"{measured.cores} cores, {threads}"
    )
