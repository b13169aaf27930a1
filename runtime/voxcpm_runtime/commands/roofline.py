"""The least time of a patch: the bytes of weights that it needs, and how fast this machine reads memory."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from voxcpm_constants.manifest import Manifest
from voxcpm_constants.step_models import (
    AUDIO_VAE_DECODER,
    BASE_LM_STEP,
    FEAT_ENCODER,
    LOCDIT_STEP,
    RESIDUAL_LM_STEP,
    Precision,
    zero_velocity_steps,
)
from voxcpm_runtime.options import GenerationOptions

_BUFFER_BYTES = 1 << 30
"""Four times the largest caches that are common."""
_PASSES = 5


def calls_a_patch(steps: int = GenerationOptions().inference_timesteps) -> dict[str, int]:
    """Calls of each step model for one patch of `steps` Euler steps, by name.

    Classifier-free guidance is no second call: both rows are one batch. CFG-zero* skips the first steps.
    """
    return {
        LOCDIT_STEP: steps - zero_velocity_steps(steps),
        AUDIO_VAE_DECODER: 1,
        FEAT_ENCODER: 1,
        BASE_LM_STEP: 1,
        RESIDUAL_LM_STEP: 1,
    }


def weight_bytes_a_patch(manifest: Manifest, precision: Precision) -> int:
    """Bytes of packages that one patch reads if each call reads its weights once, as they are stored.

    A backend that unpacks weights reads more: ONNX Runtime computes fp16 packages in float32, from twice the bytes.
    """
    total = 0
    for name, calls in calls_a_patch().items():
        for part in manifest.parts(name):
            package = f"{manifest.package_path(precision, part.name)}/"
            stored = sum(file.bytes for path, file in manifest.files.items() if path.startswith(package))
            total += calls * stored
    return total


def memory_bandwidth(threads: int) -> float:
    """Bytes a second that `threads` threads read together: the best of five passes over a buffer of 1 GiB.

    numpy's largest element is searched in equal parts of it, which takes little more than to read them.
    """
    parts = np.array_split(np.ones(_BUFFER_BYTES // 8, np.int64), threads)
    seconds = []
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(_PASSES):
            began = time.perf_counter()
            list(pool.map(np.max, parts))
            seconds.append(time.perf_counter() - began)
    return _BUFFER_BYTES / min(seconds)
