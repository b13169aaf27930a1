"""Agreement of each step model of a bundle with its recorded reference, by precision and arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel

from voxcpm_constants.manifest import Manifest
from voxcpm_constants.step_models import Precision
from voxcpm_conversion.gate import figures
from voxcpm_runtime.backends.core_ai.worker import CoreAIWorker
from voxcpm_runtime.backends.loading import load_portable_step_model
from voxcpm_runtime.backends.portable import PROBE_OUTPUT
from voxcpm_validation.measures import Agreement, agreement
from voxcpm_validation.reference import RecordedCall

Arithmetic = Literal["plain", "faithful", "core-ai"]
"""plain: float32 arithmetic on the package's weights. faithful: every intermediate result is rounded to fp16. Both are
the portable executor's. core-ai: Apple's runtime, in the program's own arithmetic."""

NEAR_LIMIT = 65504.0 / 4
_HEARD_SHAPES: dict[str, tuple[int, ...]] = {"audio": (-1,), "stop_logits": (-1, 2)}

# The published conversion's fp16 correlations with PyTorch, rounded to six places.
PUBLISHED_FP16 = {
    "audio_vae_encoder": 0.999989,
    "audio_vae_decoder": 0.999999,
    "feat_encoder": 1.000000,
    "base_lm_step": 0.999998,
    "residual_lm_step": 1.000000,
    "locdit_step": 0.999999,
}


class NearLimit(BaseModel, extra="forbid", frozen=True):
    """An operation whose largest magnitude is at least a quarter of fp16's limit."""

    operation: str
    max_abs: float


class StepAgreement(BaseModel, extra="forbid", frozen=True):
    """Agreement of one step model in one precision and arithmetic, for each output over all calls."""

    step_model: str
    precision: Precision
    arithmetic: Arithmetic
    floors_of: Precision
    """The precision whose floors apply: fp32 for a package that computes in float32 in every precision."""
    calls: int
    outputs: dict[str, Agreement]
    lengths: dict[int, Agreement] = {}
    """Agreement of the first output, by the length of the call."""
    near_fp16_limit: tuple[NearLimit, ...] = ()
    heard: dict[str, float] = {}
    """Figures of `voxcpm_conversion.gate.FLOORS`: the waveform's bands, the flatness of its noisy frames, and how often
    the stop head decides alike.
    """

    @property
    def correlation(self) -> float:
        """Correlation of the first output, as in the published figures."""
        return next(iter(self.outputs.values())).correlation

    @property
    def lowest(self) -> float:
        """The lowest correlation of the first output at any length, and over all."""
        return min(self.correlation, *(a.correlation for a in self.lengths.values()))


def measure_step(
    bundle: Path,
    manifest: Manifest,
    precision: Precision,
    step_model: str,
    arithmetic: Arithmetic,
    calls: Sequence[RecordedCall],
) -> StepAgreement:
    """Replay the recorded calls, carrying the state from call to call, and compare each output over all calls.

    Runs on the portable executor, or on Core AI's runtime. Raises what loading a step model raises.
    """
    declaration = manifest.step_models[step_model]
    # Functions and parts name their operations differently, so only a step model of one function is probed.
    packages = manifest.parts(step_model)
    probe = arithmetic == "faithful" and [len(manifest.form(p).functions) for p in packages] == [1]
    runner: Any
    if arithmetic == "core-ai":
        runner = CoreAIWorker(bundle, precision, [step_model]).step_models[step_model]
    else:
        runner = load_portable_step_model(
            bundle, manifest, precision, step_model, mode=arithmetic, probe=probe
        )
    state = runner.new_state() if declaration.state else None
    replayed = [(runner(call.inputs, state), call.outputs) for call in calls]
    tensor, axis = declaration.chunk_axis
    by_length: dict[int, list[_OutputPair]] = {}
    for call, pair in zip(calls, replayed, strict=True):
        by_length.setdefault(call.inputs[tensor.name].shape[axis], []).append(pair)
    first = declaration.outputs[0].name
    return StepAgreement(
        step_model=step_model,
        precision=precision,
        arithmetic=arithmetic,
        floors_of=declaration.precision_in(precision),
        calls=len(calls),
        outputs={t.name: _over_calls(replayed, t.name) for t in declaration.outputs},
        lengths={length: _over_calls(pairs, first) for length, pairs in sorted(by_length.items())},
        heard=_heard(replayed, manifest.architecture.output_sample_rate),
        near_fp16_limit=_near_limit(runner.lowered.probed, [results for results, _ in replayed])
        if probe
        else (),
    )


_OutputPair = tuple[Mapping[str, npt.NDArray[Any]], Mapping[str, npt.NDArray[Any]]]
"""A step model's outputs for a recorded call, and upstream's."""


def _over_calls(pairs: Sequence[_OutputPair], output: str) -> Agreement:
    """Agreement of one output over all calls that have it."""
    having = [pair for pair in pairs if output in pair[1]]
    got, want = (
        np.concatenate([side[output].ravel() for side in sides]) for sides in zip(*having, strict=True)
    )
    return agreement(got, want)


def _heard(pairs: Sequence[_OutputPair], rate: int) -> dict[str, float]:
    """The figures of outputs that are heard at once, over all calls. rate: of audio, in Hz."""
    found, expected = (
        {
            name: np.concatenate([side[name].reshape(shape) for side in sides])
            for name, shape in _HEARD_SHAPES.items()
            if all(name in want for _, want in pairs)
        }
        for sides in zip(*pairs, strict=True)
    )
    return figures(found, expected, rate)


def _near_limit(
    operations: Sequence[str], results: Sequence[Mapping[str, npt.NDArray[Any]]]
) -> tuple[NearLimit, ...]:
    peaks = np.max([result[PROBE_OUTPUT] for result in results], axis=0)
    # `not peak < limit` also catches NaN.
    near = [
        (float(peak), name) for name, peak in zip(operations, peaks, strict=True) if not peak < NEAR_LIMIT
    ]
    return tuple(NearLimit(operation=name, max_abs=peak) for peak, name in sorted(near, reverse=True))
