"""Speed, memory and agreement of a bundle on a GPU, with and without CUDA graphs, and of upstream on the same GPU.

    python benchmarks/on_gpu.py BUNDLE [--checkpoint CHECKPOINT] [--patches 64] [--rounds 3] [--parity] [--json FILE]

Each contender runs in its own process, and they take turns. Upstream is measured as its package runs it (bfloat16,
`optimize=True`) if a checkpoint is given. `--parity` also speaks on the processor in float32 with the same noise. The
exit code is 1 if a contender fails in every round.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

TEXT = "By listening a few minutes a day, you will hear the difference between two voices."
PARITY_PATCHES = 12
CONTENDERS = [GRAPHS, NO_GRAPHS, UPSTREAM] = ["bundle", "bundle-without-graphs", "upstream"]


def main() -> None:
    """Measure all contenders in turn and print their medians."""
    arguments = _arguments()
    if arguments.contender:
        print(json.dumps(_measure(arguments)))
        return
    contenders = [c for c in arguments.contenders if c != UPSTREAM or arguments.checkpoint]
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in contenders}
    for index in range(arguments.rounds):
        for name in contenders:
            found = _in_child(name, arguments, first=index == 0)
            if found is None:
                continue
            rounds[name].append(found)
            print(f"{name}: {found}", flush=True)
    medians = {name: _medians(results) for name, results in rounds.items() if results}
    print(json.dumps(medians, indent=1))
    if arguments.json:
        arguments.json.write_text(json.dumps({"medians": medians, "rounds": rounds}, indent=1))
    if failed := [name for name, results in rounds.items() if not results]:
        raise SystemExit(f"failed in every round: {', '.join(failed)}")


def _medians(results: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The median of each figure over the rounds that have it: times of calls and parity are of the first one only."""
    keys = dict.fromkeys(key for found in results for key in found)
    return {key: statistics.median(found[key] for found in results if key in found) for key in keys}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle")
    parser.add_argument("--checkpoint", help="measure upstream on it, too")
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=CONTENDERS)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision")
    parser.add_argument("--patches", type=int, default=64)
    parser.add_argument(
        "--steps", type=int, default=10, help="Euler steps; a bundle with as many in one call uses it"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--parity", action="store_true", help="compare latents with float32 on the processor")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--contender", help=argparse.SUPPRESS)
    parser.add_argument("--calls", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def _in_child(name: str, arguments: argparse.Namespace, *, first: bool) -> dict[str, Any] | None:
    options = [
        "--device",
        arguments.device,
        "--patches",
        str(arguments.patches),
        "--steps",
        str(arguments.steps),
    ]
    options += ["--precision", arguments.precision] if arguments.precision else []
    options += ["--checkpoint", arguments.checkpoint] if arguments.checkpoint else []
    options += ["--calls"] if first else []
    options += ["--parity"] if arguments.parity and first and name == GRAPHS else []
    command = [sys.executable, __file__, arguments.bundle, *options, "--contender", name]
    # Threads of libraries would spin on the processor that launches kernels.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(  # noqa: S603 - this file itself
        command, env=environment, check=False, stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
        print(f"{name}: failed with exit code {done.returncode}", flush=True)
        return None
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _measure(arguments: argparse.Namespace) -> dict[str, Any]:
    if arguments.contender == UPSTREAM:
        return _measure_upstream(arguments)
    from voxcpm_runtime.backends.gpu.device import Device

    if arguments.contender == GRAPHS:
        return _measure_bundle(arguments)
    with mock.patch.object(Device, "captures", False):
        return _measure_bundle(arguments)


def _measure_bundle(arguments: argparse.Namespace) -> dict[str, Any]:
    from voxcpm_runtime.voxcpm import VoxCPM

    began = time.perf_counter()
    tts = VoxCPM.from_bundle(arguments.bundle, precision=arguments.precision, device=arguments.device)
    loaded = time.perf_counter() - began
    a = tts.bundle.architecture
    given = _options(arguments.patches, arguments.steps)

    def speak() -> None:
        tts.generate(TEXT, seed=0, retry_badcase=False, **given)

    def first_audio() -> float:
        began = time.perf_counter()
        chunks = tts.generate_streaming(TEXT, seed=0, first_chunk_patches=1, **given)
        next(chunks)
        seconds = time.perf_counter() - began
        chunks.close()
        return seconds

    speak()
    seconds = _median(speak, 3)
    figures: dict[str, Any] = {
        "load_seconds": loaded,
        "patches_per_second": arguments.patches / seconds,
        "real_time_factor": seconds / (arguments.patches * a.patch_seconds),
        "patch_seconds": a.patch_seconds,
        "first_audio_seconds": statistics.median(first_audio() for _ in range(5)),
        "gpu_memory_gb": _gpu_memory() / 1e9,
    }
    if arguments.calls:
        figures |= {f"ms {name}": value for name, value in _calls(tts).items()}
    if arguments.parity:
        figures |= _parity(tts, arguments)
    return figures


def _options(patches: int, steps: int) -> dict[str, Any]:
    """Options for one utterance of exactly so many patches, whatever the text."""
    return {"min_len": patches, "max_len": patches, "segment_tokens": 200, "inference_timesteps": steps}


def _calls(tts: Any) -> dict[str, float]:
    """Median milliseconds of a call of each step model, by length."""
    generator, timed = np.random.default_rng(0), {}
    for name, declared in tts.bundle.manifest.step_models.items():
        model = tts.driver.models[name]
        for chunk, length in enumerate(
            declared.chunk_lengths if declared.state or name == "feat_encoder" else (1,)
        ):
            inputs = {
                t.name: np.zeros(t.shape_at(chunk), np.int32)
                if t.dtype == "int32"
                else generator.standard_normal(t.shape_at(chunk), np.float32)
                for t in declared.inputs
            }
            state = model.new_state() if declared.state else None
            for _ in range(4):  # shapes, both turns of two buffers, captured
                model(inputs, state)
            timed[f"{name}[{length}]"] = 1e3 * _median(lambda: model(inputs, state), 30)  # noqa: B023 - called now
    return timed


def _parity(tts: Any, arguments: argparse.Namespace) -> dict[str, float]:
    """Correlation of latents with the same bundle in float32 on the processor: a free run, and teacher forcing."""
    from voxcpm_runtime.voxcpm import VoxCPM

    options = {**_options(PARITY_PATCHES, arguments.steps), "seed": 7, "retry_badcase": False}
    ours = tts.speak(TEXT, **options).latents
    host = VoxCPM.from_bundle(arguments.bundle, precision=arguments.precision)
    theirs = host.speak(TEXT, **options).latents
    forced = [_forced(either, theirs, arguments.steps) for either in (tts, host)]
    by_patch = [_correlation(x, y) for x, y in zip(*forced, strict=True)]
    return {
        "free_correlation": _correlation(ours, theirs),
        "forced_correlation": statistics.median(by_patch),
        "worst_forced_correlation": min(by_patch),
    }


def _forced(tts: Any, teacher: Any, steps: int) -> list[Any]:
    """The patches that follow each of the teacher's."""
    from voxcpm_runtime.model.sequence import build_sequence
    from voxcpm_runtime.options import GenerationOptions

    a, driver = tts.bundle.architecture, tts.driver
    tokens = [1 + index % 100 for index in range(20)]
    prefilled = driver.prefill(build_sequence(tokens, (a.patch_size, a.feat_dim)))
    options = GenerationOptions(inference_timesteps=steps)
    rng = np.random.default_rng(7)
    return [
        p.latents
        for p in driver.generate_patches(prefilled, options, rng, len(teacher), teacher=list(teacher))
    ]


def _correlation(x: Any, y: Any) -> float:
    return float(np.corrcoef(np.ravel(x), np.ravel(y))[0, 1])


def _measure_upstream(arguments: argparse.Namespace) -> dict[str, Any]:
    from voxcpm_constants.manifest import Manifest
    from voxcpm_validation.upstream import load_upstream, upstream_generate

    manifest = Manifest.read(Path(arguments.bundle))
    a, positions = manifest.architecture, manifest.sizes.kv_length
    began = time.perf_counter()
    model = load_upstream(
        arguments.checkpoint, dtype="bfloat16", max_length=positions, device=arguments.device, optimize=True
    )
    loaded = time.perf_counter() - began

    def speak() -> None:
        lengths = {"min_len": arguments.patches, "max_len": arguments.patches}
        upstream_generate(
            model, TEXT, rng=np.random.default_rng(0), inference_timesteps=arguments.steps, **lengths
        )

    for _ in range(3):  # compiles
        speak()
    seconds = _median(speak, 3)
    return {
        "load_seconds": loaded,
        "patches_per_second": arguments.patches / seconds,
        "real_time_factor": seconds / (arguments.patches * a.patch_seconds),
        "gpu_memory_gb": _gpu_memory() / 1e9,
    }


def _gpu_memory() -> float:
    """Bytes in use on the first GPU, by whatever uses it; NaN without nvidia-smi."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        found = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603 - a fixed command
    except (OSError, subprocess.SubprocessError):
        return float("nan")
    return float(found.stdout.split()[0]) * 2**20


def _median(call: Callable[[], object], repeats: int) -> float:
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


if __name__ == "__main__":
    main()
