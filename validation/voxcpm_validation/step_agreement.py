"""Agreement of each step model of a bundle with its recorded reference, by precision and arithmetic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import compress
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

from voxcpm_constants.manifest import Manifest
from voxcpm_constants.step_models import Precision, StepModel
from voxcpm_runtime.backends.core_ai.step_model import load_core_ai_step_model
from voxcpm_runtime.backends.loading import load_portable_step_model
from voxcpm_runtime.backends.portable import PROBE_OUTPUT
from voxcpm_validation.measures import Agreement, agreement
from voxcpm_validation.reference import RecordedCall

Arithmetic = Literal["plain", "faithful", "core-ai"]
"""plain: float32 arithmetic on the package's weights. faithful: every intermediate result is rounded to fp16. Both are
the portable executor's. core-ai: Apple's runtime, in the program's own arithmetic."""

FP16_LIMIT = 65504.0
NEAR_LIMIT = FP16_LIMIT / 4

# Correlations with PyTorch that the published conversion states for fp16, rounded to six places.
PUBLISHED_FP16 = {
    "audio_vae_encoder": 0.999989,
    "audio_vae_decoder": 0.999999,
    "feat_encoder": 1.000000,
    "base_lm_step": 0.999998,
    "residual_lm_step": 1.000000,
    "locdit_step": 0.999999,
}


class NearLimit(BaseModel):
    """An operation whose largest magnitude is at least a quarter of fp16's limit."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    operation: str
    max_abs: float


class StepAgreement(BaseModel):
    """The agreement of one step model in one precision and arithmetic, for each output over all calls."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    step_model: str
    precision: Precision
    arithmetic: Arithmetic
    floors_of: Precision
    """The precision whose floors apply: fp32 for a package that computes in float32 in every precision."""
    calls: int
    outputs: dict[str, Agreement]
    lengths: dict[int, Agreement] = {}
    """The agreement of the first output, for the calls of each length alone."""
    near_fp16_limit: tuple[NearLimit, ...] = ()

    @property
    def correlation(self) -> float:
        """Correlation of the first output, which the published figures refer to."""
        return next(iter(self.outputs.values())).correlation

    @property
    def lowest(self) -> float:
        """The lowest correlation of the first output at any length, and over all."""
        return min(self.correlation, *(a.correlation for a in self.lengths.values()))


class StepRunner(Protocol):
    """A loaded step model."""

    def new_state(self) -> Any:
        """The state at the start of a stream."""
        ...

    def __call__(
        self, inputs: Mapping[str, npt.NDArray[Any]], state: Any = None
    ) -> dict[str, npt.NDArray[Any]]:
        """The outputs by name. `state`, from `new_state`, is updated in place."""
        ...


def measure_step(
    bundle: Path,
    manifest: Manifest,
    precision: Precision,
    step_model: str,
    arithmetic: Arithmetic,
    calls: Sequence[RecordedCall],
) -> StepAgreement:
    """Replay the recorded calls, passing the state from call to call, and compare each output over all calls.

    Runs on the portable executor, or on Core AI's runtime. Raises what loading a step model raises.
    """
    declaration = manifest.step_models[step_model]
    calls = [in_batch(call, declaration) for call in calls]
    # Functions and parts name their operations differently, so only a step model of one function is probed.
    packages = manifest.parts(step_model)
    probe = arithmetic == "faithful" and [len(manifest.form(p).functions) for p in packages] == [1]
    runner = step_runner(bundle, manifest, precision, step_model, arithmetic, probe=probe)
    results = replay(runner, calls, stateful=bool(declaration.state))
    expected = [call.outputs for call in calls]
    first, lengths = declaration.outputs[0].name, call_lengths(declaration, calls)
    return StepAgreement(
        step_model=step_model,
        precision=precision,
        arithmetic=arithmetic,
        floors_of=declaration.precision_in(precision),
        calls=len(calls),
        outputs={t.name: over_calls(results, expected, t.name) for t in declaration.outputs},
        lengths={
            length: over_calls(results, expected, first, [n == length for n in lengths])
            for length in sorted(set(lengths))
        },
        near_fp16_limit=_near_limit(runner.probed, results) if probe else (),
    )


def step_runner(
    bundle: Path,
    manifest: Manifest,
    precision: Precision,
    step_model: str,
    arithmetic: Arithmetic,
    *,
    probe: bool = False,
) -> Any:
    """A loaded step model in an arithmetic, a `StepRunner`. probe: with the largest magnitude of each operation."""
    if arithmetic == "core-ai":
        return load_core_ai_step_model(bundle, manifest, precision, step_model)
    return load_portable_step_model(bundle, manifest, precision, step_model, mode=arithmetic, probe=probe)


def call_lengths(declaration: StepModel, calls: Sequence[RecordedCall]) -> list[int]:
    """The length of each call along the axis that may have several."""
    tensor, axis = declaration.chunk_axis
    return [call.inputs[tensor.name].shape[axis] for call in calls]


def over_calls(
    results: Sequence[Mapping[str, npt.NDArray[Any]]],
    expected: Sequence[Mapping[str, npt.NDArray[Any]]],
    output: str,
    chosen: Iterable[bool] | None = None,
) -> Agreement:
    """The agreement of one output over all calls, or over the chosen ones."""
    pairs = list(compress(zip(results, expected, strict=True), chosen or [True] * len(results)))
    return agreement(
        np.concatenate([result[output].ravel() for result, _ in pairs]),
        np.concatenate([reference[output].ravel() for _, reference in pairs]),
    )


def in_batch(call: RecordedCall, declaration: StepModel) -> RecordedCall:
    """A call for one utterance, repeated along the first axis for as many utterances as the step model advances."""
    first = declaration.inputs[0]
    times = first.shape_at(0)[0] // len(call.inputs[first.name])

    def repeated(arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        return {name: np.concatenate([array] * times) for name, array in arrays.items()}

    return RecordedCall(repeated(call.inputs), repeated(call.outputs))


def replay(
    runner: StepRunner, calls: Sequence[RecordedCall], *, stateful: bool
) -> list[dict[str, npt.NDArray[Any]]]:
    """Outputs of each call, by name; the first call starts a stream."""
    state = runner.new_state() if stateful else None
    return [runner(call.inputs, state) for call in calls]


def _near_limit(
    operations: Sequence[str], results: Sequence[dict[str, npt.NDArray[Any]]]
) -> tuple[NearLimit, ...]:
    peaks = np.max([result[PROBE_OUTPUT] for result in results], axis=0)
    # `not peak < limit` also lists a NaN.
    near = [
        (float(peak), name) for name, peak in zip(operations, peaks, strict=True) if not peak < NEAR_LIMIT
    ]
    return tuple(NearLimit(operation=name, max_abs=peak) for peak, name in sorted(near, reverse=True))
