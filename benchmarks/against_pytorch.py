"""Speed and memory of a bundle compared with upstream's PyTorch code on the same checkpoint, as ratios.

    python benchmarks/against_pytorch.py BUNDLE CHECKPOINT [--patches 32] [--rounds 3] [--json]

Each measurement runs in its own process, with the same number of threads. The contenders take turns, so that a machine
whose speed drifts affects all of them equally; medians over the rounds are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

TEXT = "By listening a few minutes a day, you will hear the difference between two voices."
PREFILL_TOKENS = 64


def main() -> None:
    """Measure all contenders in turn and print their medians, as a table or as JSON."""
    arguments = _arguments()
    if arguments.contender:
        print(json.dumps(_measure(arguments)))
        return
    contenders = [
        *(f"bundle {p}" for p in arguments.precision),
        *(f"upstream {d}" for d in arguments.upstream),
    ]
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in contenders}
    for _ in range(arguments.rounds):
        for name in contenders:
            rounds[name].append(_in_child(name, arguments))
            print(f"{name}: {rounds[name][-1]}", file=sys.stderr)
    medians = {
        name: {figure: statistics.median(r[figure] for r in results) for figure in results[0]}
        for name, results in rounds.items()
    }
    if arguments.json:
        print(json.dumps(medians, indent=1))
        return
    _print_table(medians)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle")
    parser.add_argument("checkpoint")
    parser.add_argument("--precision", nargs="+", default=["int8", "fp16"])
    parser.add_argument(
        "--upstream",
        nargs="+",
        default=["float32", "bfloat16"],
        help="upstream's dtypes; float32 is required",
    )
    parser.add_argument(
        "--patches", type=int, default=32, help="patches to speak; VoxCPM 1.5 needs about 32 for the text"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--contender", help=argparse.SUPPRESS)
    return parser.parse_args()


def _in_child(contender: str, arguments: argparse.Namespace) -> dict[str, float]:
    options = [
        "--patches",
        str(arguments.patches),
        "--threads",
        str(arguments.threads),
        "--contender",
        contender,
    ]
    command = [sys.executable, __file__, arguments.bundle, arguments.checkpoint, *options]
    environment = {**os.environ, "OMP_NUM_THREADS": str(arguments.threads)}
    done = subprocess.run(  # noqa: S603 - this file itself
        command, env=environment, check=True, stdout=subprocess.PIPE, text=True
    )
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def _measure(arguments: argparse.Namespace) -> dict[str, float]:
    kind, variant = arguments.contender.split()
    measure = {"bundle": _measure_bundle, "upstream": _measure_upstream}[kind]
    figures = measure(arguments, variant)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return {**figures, "peak_memory_gb": peak / 1e9}


def _measure_bundle(arguments: argparse.Namespace, precision: str) -> dict[str, float]:
    from voxcpm_runtime.model.sequence import build_sequence
    from voxcpm_runtime.voxcpm import VoxCPM

    tts = VoxCPM.from_bundle(arguments.bundle, precision=precision, threads=arguments.threads)
    a = tts.bundle.architecture
    # One utterance, as upstream speaks it.
    lengths = {"min_len": arguments.patches, "max_len": arguments.patches, "segment_tokens": 200}
    sequence = build_sequence([1] * (PREFILL_TOKENS - 1), (a.patch_size, a.feat_dim))

    def speak() -> None:
        tts.speak(TEXT, seed=0, retry_badcase=False, **lengths)

    speak()
    tts.driver.prefill(sequence)
    seconds, prefill = _seconds(speak), _seconds(lambda: tts.driver.prefill(sequence))
    return {
        "patches_per_second": arguments.patches / seconds,
        "real_time_factor": seconds / (arguments.patches * a.patch_seconds),
        "prefill_ms_per_token": 1e3 * prefill / PREFILL_TOKENS,
    }


def _measure_upstream(arguments: argparse.Namespace, dtype: Any) -> dict[str, float]:
    import numpy as np
    import torch

    from voxcpm_constants.manifest import Manifest
    from voxcpm_validation.upstream import load_upstream, upstream_generate

    manifest = Manifest.read(Path(arguments.bundle))
    a, positions = manifest.architecture, manifest.sizes.kv_length
    torch.set_num_threads(arguments.threads)
    # The bundle's cache length: upstream attends to the whole cache in every step, as the step models do.
    model = load_upstream(arguments.checkpoint, dtype=dtype, max_length=positions)
    lengths = {"min_len": arguments.patches, "max_len": arguments.patches}

    def speak() -> None:
        upstream_generate(model, TEXT, rng=np.random.default_rng(0), **lengths)

    @torch.inference_mode()
    def step_by_step() -> None:
        hidden = torch.zeros(1, a.lm_config.hidden_size, dtype=next(model.base_lm.parameters()).dtype)
        for position in range(8):
            for lm in (model.base_lm, model.residual_lm):
                lm.forward_step(hidden, torch.tensor([position]))

    @torch.inference_mode()
    def at_once() -> None:
        embeddings = torch.zeros(
            1, PREFILL_TOKENS, a.lm_config.hidden_size, dtype=next(model.base_lm.parameters()).dtype
        )
        for lm in (model.base_lm, model.residual_lm):
            lm(inputs_embeds=embeddings, is_causal=True)

    speak()
    step_by_step()
    seconds = _seconds(speak)
    return {
        "patches_per_second": arguments.patches / seconds,
        "real_time_factor": seconds / (arguments.patches * a.patch_seconds),
        "prefill_ms_per_token": 1e3 * _seconds(at_once) / PREFILL_TOKENS,
        "step_by_step_ms_per_token": 1e3 * _seconds(step_by_step) / 8,
    }


def _seconds(call: Any, repeats: int = 3) -> float:
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def _print_table(medians: dict[str, dict[str, float]]) -> None:
    from rich.console import Console
    from rich.table import Table

    reference = medians["upstream float32"]
    table = Table("contender", "patches/s", "× fp32", "RTF", "prefill ms/token", "× step by step", "peak GB")
    for name, m in medians.items():
        table.add_row(
            name,
            f"{m['patches_per_second']:.2f}",
            f"{m['patches_per_second'] / reference['patches_per_second']:.2f}",
            f"{m['real_time_factor']:.2f}",
            f"{m['prefill_ms_per_token']:.1f}",
            f"{reference['step_by_step_ms_per_token'] / m['prefill_ms_per_token']:.1f}",
            f"{m['peak_memory_gb']:.1f}",
        )
    Console().print(table)
    Console().print(f"upstream float32, step by step: {reference['step_by_step_ms_per_token']:.1f} ms/token")


if __name__ == "__main__":
    main()
