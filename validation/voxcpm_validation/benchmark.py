"""The command `benchmark`: speed and memory of a bundle on this machine."""

from __future__ import annotations

import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import typer

from voxcpm_constants.json_files import printed_json
from voxcpm_constants.step_models import AUDIO_VAE_ENCODER, StepModel
from voxcpm_runtime.backends.core_ml.compute_units import AUTO
from voxcpm_runtime.backends.loading import check_engine
from voxcpm_runtime.backends.machine import chip, cores, cpu_features, median_seconds
from voxcpm_runtime.commands.shared_arguments import BundleArgument, Json, PrecisionOption
from voxcpm_runtime.model.sequence import build_sequence
from voxcpm_runtime.options import SEGMENT_TOKENS
from voxcpm_runtime.voxcpm import VoxCPM
from voxcpm_validation.default_text import DEFAULT_TEXT

_PREFILL_TOKENS = 128
_MAX_SPEECHES = 3
_SPEECH_SECONDS = 12.0
_OPEN = (
    "import sys; from voxcpm_runtime.voxcpm import VoxCPM; "
    "VoxCPM.from_bundle(sys.argv[1], precision=sys.argv[2])"
)


def benchmark(
    bundle: BundleArgument = None,
    precision: PrecisionOption = None,
    json: Json = False,
    text: Annotated[str, typer.Option(help="Text to speak.")] = DEFAULT_TEXT,
    patches: Annotated[int, typer.Option(help="Patches to generate.", min=2)] = 24,
    repeats: Annotated[int, typer.Option(help="Maximum timed calls per step model.", min=1)] = 20,
    threads: Annotated[int | None, typer.Option(help="Threads per operation (portable).")] = None,
    cold: Annotated[bool, typer.Option(help="Also time start-up with an empty cache.")] = True,
) -> None:
    """Benchmark a bundle: step models, prefill, speech, start-up and memory."""
    check_engine("auto", threads, AUTO)
    # Opened before start-up is timed, so that a bad bundle is a one-line error, not a failed child process.
    tts = VoxCPM.from_bundle(bundle, precision=precision, threads=threads)
    # Raises for a text that cannot be spoken, before minutes of measuring.
    tts.plan(text, **_one_utterance(patches))
    figures = {
        "bundle": tts.bundle.folder.name,
        "precision": tts.bundle.precision,
        "machine": f"{platform.system()} {platform.machine()}",
        "processor": chip(),
        "cpu_features": cpu_features(),
        "cores": cores(),
        "threads": threads,
        **_startup_seconds(tts, cold=cold),
        **_measured(tts, text, patches, repeats),
    }
    if json:
        typer.echo(printed_json(figures))
        return
    shown = {name.replace("_", " "): value for name, value in figures.items() if value is not None}
    shown["cpu features"] = ", ".join(shown["cpu features"])
    steps = shown.pop("step milliseconds")
    for name, value in {**shown, **{f"{name} milliseconds": each for name, each in steps.items()}}.items():
        typer.echo(f"{name:<36}{f'{value:,.2f}' if isinstance(value, float) else value}")


def _measured(tts: VoxCPM, text: str, patches: int, repeats: int) -> dict[str, Any]:
    """Median wall-clock times, and this process's peak memory."""
    a, manifest = tts.bundle.architecture, tts.bundle.manifest
    steps = {
        f"{name}[{length}]": 1e3 * seconds
        for name, declared in manifest.step_models.items()
        for length, seconds in _step_seconds(tts, declared, repeats).items()
    }
    tokens = min(_PREFILL_TOKENS, manifest.sizes.kv_length)
    sequence = build_sequence([1] * (tokens - 1), (a.patch_size, a.feat_dim))
    prefill = median_seconds(lambda: tts.driver.prefill(sequence), repeats)
    first, whole = _speech_seconds(tts, text, patches)
    # macOS counts bytes, Linux kibibytes.
    unit = 1 if sys.platform == "darwin" else 1024
    return {
        "step_milliseconds": steps,
        "prefill_tokens_per_second": tokens / prefill,
        "patches_per_second": patches / whole,
        "real_time_factor": whole / (patches * a.patch_seconds),
        "time_to_first_audio_seconds": first,
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit,
    }


def _step_seconds(tts: VoxCPM, declared: StepModel, repeats: int) -> dict[int, float]:
    """Median seconds of one call, by length of the enumerated axis (in tokens or patches)."""
    model, generator = tts.driver.models[declared.name], np.random.default_rng(0)
    unit = tts.bundle.architecture.patch_input_samples if declared.name == AUDIO_VAE_ENCODER else 1
    timed = {}
    for chunk, elements in enumerate(declared.chunk_lengths if declared.chunk_count > 1 else (unit,)):
        inputs: dict[str, npt.NDArray[Any]] = {
            t.name: np.zeros(t.shape_at(chunk), np.int32)
            if t.dtype == "int32"
            else generator.standard_normal(t.shape_at(chunk), np.float32)
            for t in declared.inputs
        }
        state = model.new_state() if declared.state else None
        timed[elements // unit] = median_seconds(lambda: model(inputs, state), repeats)  # noqa: B023 - called immediately
    return timed


def _speech_seconds(tts: VoxCPM, text: str, patches: int) -> tuple[float, float]:
    """Median seconds to the first and to the last audio."""
    firsts: list[float] = []

    def speak() -> None:
        began = time.perf_counter()
        chunks = tts.generate_streaming(text, seed=0, first_chunk_patches=1, **_one_utterance(patches))
        next(chunks)
        firsts.append(time.perf_counter() - began)
        for _ in chunks:
            pass

    whole = median_seconds(speak, _MAX_SPEECHES, _SPEECH_SECONDS, warm_up=False)
    return statistics.median(firsts), whole


def _one_utterance(patches: int) -> dict[str, Any]:
    return {"min_len": patches, "max_len": patches, "segment_tokens": SEGMENT_TOKENS}


def _startup_seconds(tts: VoxCPM, *, cold: bool) -> dict[str, float | None]:
    """Seconds for a new process to open the bundle: with an empty cache (if `cold`), and with a warm one."""
    command = [sys.executable, "-c", _OPEN, str(tts.bundle.folder), tts.bundle.precision]

    def start(environment: dict[str, str]) -> float:
        began = time.perf_counter()
        subprocess.run(command, env=environment, check=True, capture_output=True)  # noqa: S603 - our own program
        return time.perf_counter() - began

    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, **({"VOXCPM_COREML_CACHE": cache} if cold else {})}
        first, second = start(environment), start(environment)
    return {"startup_cold_seconds": first if cold else None, "startup_warm_seconds": second}
