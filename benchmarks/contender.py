"""A contender process of compare.py: opens a bundle, or upstream's model, and runs measurements on request.

Its first line of JSON is the list of its measurements, or the reason why opening failed. Then it reads the name of a
measurement from each line of its standard input, and responds with a line of JSON: figures by name. It runs in the
contender's own tree, which may be old, so it also looks for modules under former names.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Measurements = dict[str, Callable[[], dict[str, float]]]

TEXT = "By listening a few minutes a day, you will hear the difference between two voices."
PREFILL_TOKENS = 128
# Maximum seconds and calls of one measurement, so that the contenders' turns are close in time.
TURN_SECONDS = 0.3
TURN_CALLS = 20


def main() -> None:
    """Serve requests until standard input ends."""
    job = json.loads(sys.argv[1])
    # Other output must not mix with the responses.
    responses = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    from voxcpm_constants.errors import VoxCPMError

    try:
        measurements = _upstream(job) if job["dtype"] else _bundle(job)
    # An invalid option name or value.
    except (TypeError, VoxCPMError) as error:
        print(json.dumps(str(error)), file=responses, flush=True)
        raise SystemExit(2) from None
    print(json.dumps(list(measurements)), file=responses, flush=True)
    measurements["memory"] = _memory
    for line in sys.stdin:
        print(json.dumps(measurements[line.strip()]()), file=responses, flush=True)


def _bundle(job: dict[str, Any]) -> Measurements:
    from voxcpm_runtime.voxcpm import VoxCPM

    patches = job["patches"]
    tts = VoxCPM.from_bundle(job["bundle"], **job["options"])
    sizes, a, models = tts.bundle.manifest.sizes, tts.bundle.architecture, tts.driver.models
    measurements: Measurements = {}

    def add_step(name: str, declared: Any, chunk: int, length: int) -> None:
        noise = np.random.default_rng(0)
        inputs = {
            t.name: np.zeros(t.shape_at(chunk), np.int32)
            if t.dtype == "int32"
            else noise.standard_normal(t.shape_at(chunk), np.float32)
            for t in declared.inputs
        }
        state = models[name].new_state() if declared.state else None
        measurements[f"{name}[{length}]"] = lambda: {
            f"{name}[{length}], ms": 1e3 * _seconds(lambda: models[name](inputs, state))
        }

    for name, declared in tts.bundle.manifest.step_models.items():
        for chunk, length in enumerate(_lengths(declared, a)):
            add_step(name, declared, chunk, length)

    tokens = min(PREFILL_TOKENS, sizes.kv_length)
    text = _sequence([1] * (tokens - 1), a)
    measurements["prefill"] = lambda: {
        "prefill, ms/token": 1e3 / tokens * _seconds(lambda: tts.driver.prefill(text))
    }

    def speech() -> dict[str, float]:
        began = time.perf_counter()
        chunks = tts.generate_streaming(TEXT, seed=0, first_chunk_patches=1, **_utterance(patches, job))
        next(chunks)
        first = time.perf_counter() - began
        for _ in chunks:
            pass
        return {"first audio, ms": 1e3 * first, **_speed(time.perf_counter() - began, patches, a)}

    measurements["speech"] = speech
    return measurements


def _upstream(job: dict[str, Any]) -> Measurements:
    import torch

    from voxcpm_constants.manifest import Manifest
    from voxcpm_validation.upstream import load_upstream, upstream_generate

    manifest = Manifest.read(Path(job["bundle"]))
    a, positions = manifest.architecture, manifest.sizes.kv_length
    torch.set_num_threads(job["threads"])
    # The bundle's cache length: upstream attends to the whole cache in every step, as the step models do.
    model = load_upstream(job["checkpoint"], dtype=job["dtype"], max_length=positions)
    like = {"dtype": next(model.base_lm.parameters()).dtype}
    tokens = min(PREFILL_TOKENS, positions)

    @torch.inference_mode()
    def prefill() -> None:
        embeddings = torch.zeros(1, tokens, a.lm_config.hidden_size, **like)
        for lm in (model.base_lm, model.residual_lm):
            lm(inputs_embeds=embeddings, is_causal=True)

    @torch.inference_mode()
    def step() -> None:
        hidden = torch.zeros(1, a.lm_config.hidden_size, **like)
        for lm in (model.base_lm, model.residual_lm):
            lm.forward_step(hidden, torch.tensor([positions - 1]))

    def speech() -> dict[str, float]:
        patches, began = job["patches"], time.perf_counter()
        lengths = {"min_len": patches, "max_len": patches, "inference_timesteps": job["steps"]}
        upstream_generate(model, TEXT, rng=np.random.default_rng(0), **lengths)
        return _speed(time.perf_counter() - began, patches, a)

    return {
        "prefill": lambda: {
            "prefill, ms/token": 1e3 / tokens * _seconds(prefill),
            "step by step, ms/token": 1e3 * _seconds(step),
        },
        "speech": speech,
    }


def _lengths(declared: Any, a: Any) -> list[int]:
    """The lengths of a step model's enumerated axis, in tokens or patches."""
    axes = [axis for tensor in declared.inputs for axis in tensor.shape if isinstance(axis, tuple)]
    unit = {"audio_vae_encoder": a.patch_input_samples, "audio_vae_decoder": a.patch_size}
    return [length // unit.get(declared.name, 1) for length in axes[0]] if axes else [1]


def _speed(seconds: float, patches: int, a: Any) -> dict[str, float]:
    return {"patches/s": patches / seconds, "real-time factor": seconds / (patches * a.patch_seconds)}


def _seconds(call: Callable[[], object]) -> float:
    """Median seconds of a call, after a warm-up call: the CPU caches held the other contender's weights."""
    call()
    seconds: list[float] = []
    while not seconds or (sum(seconds) < TURN_SECONDS and len(seconds) < TURN_CALLS):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def _sequence(tokens: list[int], a: Any) -> Any:
    try:
        from voxcpm_runtime.model.sequence import build_sequence
    except ModuleNotFoundError:
        from voxcpm_runtime.sequence import build_sequence
    return build_sequence(tokens, (a.patch_size, a.feat_dim))


def _utterance(patches: int, job: dict[str, Any]) -> dict[str, Any]:
    """Options for a single utterance of exactly this many patches, as in upstream."""
    lengths = {"min_len": patches, "max_len": patches, "segment_tokens": 200}
    return {**lengths, "inference_timesteps": job["steps"]}


def _memory() -> dict[str, float]:
    """Peak memory of this process."""
    # macOS counts bytes, Linux kibibytes.
    unit = 1 if sys.platform == "darwin" else 1024
    return {"peak memory, GB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9}


if __name__ == "__main__":
    main()
