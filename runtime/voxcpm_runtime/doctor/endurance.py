"""Trials of minutes: the step models on their chosen compute units, called in turn in a child process.

Core ML was reported to end a process after minutes or an hour, on its CPU path above all. A step model that does so
gets its next best unit, and the trial begins again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict

from voxcpm_constants.step_models import AUDIO_VAE_DECODER, AUDIO_VAE_ENCODER, Precision
from voxcpm_runtime.backends.core_ml.compute_units import COMPUTE_UNITS, CPU
from voxcpm_runtime.bundle.opening import Bundle, open_bundle
from voxcpm_runtime.doctor.children import run_child
from voxcpm_runtime.doctor.trials import Begun, Trial, fastest_correct
from voxcpm_runtime.doctor.worker import Event, Request


class Endurance(BaseModel):
    """One trial of minutes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    precision: Precision
    units: dict[str, str]
    """The compute unit of each step model."""
    outcome: Literal["done", "crashed", "hung"]
    seconds: float
    """How long it lasted."""
    step_model: str = ""
    """The step model that ended it."""
    message: str = ""


def endurance(
    bundle: Bundle, found: Sequence[Trial], minutes: float, *, limit: float, begun: Begun
) -> list[Endurance]:
    """Trials with the chosen units until one lasts, and one with an fp32 AudioVAE where the CPU's ended.

    found: the trials of each step model. limit: seconds without an answer.
    """
    return list(_trials(bundle, found, minutes, limit, begun))


def _trials(
    bundle: Bundle, found: Sequence[Trial], minutes: float, limit: float, begun: Begun
) -> Iterator[Endurance]:
    lost: set[tuple[str, str]] = set()
    half = bundle.precision != "fp32" and not bundle.manifest.audio_vae_fp32
    other: Precision | None = "fp32" if half and "fp32" in bundle.manifest.precisions else None
    while units := chosen_units_of(found, lost):
        trial = _tried(bundle, units, minutes, limit, begun)
        yield trial
        if trial.outcome == "done":
            return
        failed = trial.step_model, units[trial.step_model]
        lost.add(failed)
        if other is not None and failed in {(AUDIO_VAE_DECODER, CPU), (AUDIO_VAE_ENCODER, CPU)}:
            vae = dict.fromkeys((AUDIO_VAE_ENCODER, AUDIO_VAE_DECODER), CPU)
            yield _tried(open_bundle(bundle.folder, other), vae, minutes, limit, begun)
            other = None


def chosen_units_of(found: Sequence[Trial], lost: set[tuple[str, str]]) -> dict[str, str]:
    """The compute unit of Core ML of each step model that has a correct one. lost: step models and units to avoid."""
    chosen = fastest_correct(t for t in found if (t.step_model, t.unit) not in lost)
    return {name: trial.unit for name, trial in chosen.items() if trial.unit in COMPUTE_UNITS}


def _tried(bundle: Bundle, units: Mapping[str, str], minutes: float, limit: float, begun: Begun) -> Endurance:
    last: Event = {"step_model": next(iter(units))}

    def heard(event: Event) -> None:
        last.update(event)
        name = event["step_model"]
        begun(name, f"{units[name]}, {last.get('elapsed', 0) / 60:.1f} of {minutes:g} minutes")

    request = Request(
        task="endurance",
        bundle=str(bundle.folder),
        precision=bundle.precision,
        unit=CPU,
        step_models=tuple(units),
        limit=limit,
        judged=bool(bundle.manifest.vector_files()),
        units=dict(units),
        seconds=60 * minutes,
    )
    ending = run_child(request, heard)
    return Endurance(
        precision=bundle.precision,
        units=dict(units),
        outcome=ending.outcome,
        seconds=last.get("elapsed", 0.0),
        step_model="" if ending.outcome == "done" else last["step_model"],
        message=ending.message,
    )
