"""Each step model of a bundle, in each precision and arithmetic, against its recorded reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

from voxcpm_constants.manifest import Manifest
from voxcpm_constants.step_models import Precision, StepModel
from voxcpm_constants.targets import package_form
from voxcpm_runtime.backends.loading import load_portable_step_model
from voxcpm_runtime.backends.portable import PROBE_OUTPUT
from voxcpm_validation.measures import Agreement, agreement
from voxcpm_validation.reference import Call

Arithmetic = Literal["plain", "faithful"]
"""plain: float32 on the same weights. faithful: every intermediate rounded to fp16."""

FP16_LIMIT = 65504.0
NEAR_LIMIT = FP16_LIMIT / 4

# The published conversion's correlations with PyTorch for fp16, rounded there to six places.
PUBLISHED_FP16 = {
    "audio_vae_encoder": 0.999989,
    "audio_vae_decoder": 0.999999,
    "feat_encoder": 1.000000,
    "base_lm_step": 0.999998,
    "residual_lm_step": 1.000000,
    "locdit_step": 0.999999,
}


class NearLimit(BaseModel):
    """An operation whose largest magnitude is a quarter of fp16's limit or more."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    operation: str
    max_abs: float


class StepAgreement(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    step_model: str
    precision: Precision
    arithmetic: Arithmetic
    calls: int
    outputs: dict[str, Agreement]
    near_fp16_limit: tuple[NearLimit, ...] = ()

    @property
    def correlation(self) -> float:
        """Of the model's first output, which is what the published figures are of."""
        return next(iter(self.outputs.values())).correlation


class StepRunner(Protocol):
    def new_state(self) -> Any: ...

    def __call__(
        self, inputs: Mapping[str, npt.NDArray[Any]], state: Any = None
    ) -> dict[str, npt.NDArray[Any]]: ...


def measure_step(
    bundle: Path,
    manifest: Manifest,
    precision: Precision,
    step_model: str,
    arithmetic: Arithmetic,
    calls: Sequence[Call],
) -> StepAgreement:
    """Replay the recorded calls, state flowing from call to call, and compare all outputs at once."""
    declaration = manifest.step_models[step_model]
    calls = [in_batch(call, declaration) for call in calls]
    # Functions of one package name their operations each in its own way: peaks are told of packages with one.
    probe = arithmetic == "faithful" and len(package_form(declaration, manifest.target).functions) == 1
    runner: Any = load_portable_step_model(
        bundle, manifest, precision, step_model, mode=arithmetic, probe=probe
    )
    results = replay(runner, calls, stateful=bool(declaration.state))
    outputs = {
        name: agreement(
            np.concatenate([result[name].ravel() for result in results]),
            np.concatenate([call.outputs[name].ravel() for call in calls]),
        )
        for name in (tensor.name for tensor in declaration.outputs)
    }
    return StepAgreement(
        step_model=step_model,
        precision=precision,
        arithmetic=arithmetic,
        calls=len(calls),
        outputs=outputs,
        near_fp16_limit=_near_limit(runner.probed, results) if probe else (),
    )


def in_batch(call: Call, declaration: StepModel) -> Call:
    """The call of one utterance as that of so many utterances alike as the step model advances at once."""
    first = declaration.inputs[0]
    times = first.shape_at(0)[0] // len(call.inputs[first.name])

    def repeated(arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        return {name: np.concatenate([array] * times) for name, array in arrays.items()}

    return Call(repeated(call.inputs), repeated(call.outputs))


def replay(runner: StepRunner, calls: Sequence[Call], *, stateful: bool) -> list[dict[str, npt.NDArray[Any]]]:
    """Outputs of each call, from the start of a stream."""
    state = runner.new_state() if stateful else None
    return [runner(call.inputs, state) for call in calls]


def _near_limit(
    operations: Sequence[str], results: Sequence[dict[str, npt.NDArray[Any]]]
) -> tuple[NearLimit, ...]:
    peaks = np.max([result[PROBE_OUTPUT] for result in results], axis=0)
    # not (peak < limit): a NaN is listed too.
    near = [
        (float(peak), name) for name, peak in zip(operations, peaks, strict=True) if not peak < NEAR_LIMIT
    ]
    return tuple(NearLimit(operation=name, max_abs=peak) for peak, name in sorted(near, reverse=True))
