"""Trials of step models in child processes: one call after the other on each compute unit, or all in turn for minutes.

Core ML was reported to end a process after minutes or an hour, mostly on its CPU path. In a trial of minutes, a step
model that does so gets its next best unit, and the trial begins again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from voxcpm_constants.step_models import AUDIO_VAE_DECODER, AUDIO_VAE_ENCODER, Precision
from voxcpm_runtime.backends.core_ml.compute_units import COMPUTE_UNITS, CPU, PORTABLE
from voxcpm_runtime.bundle.opening import Bundle, open_bundle
from voxcpm_runtime.doctor.agreement import Agreement
from voxcpm_runtime.doctor.children import run_child
from voxcpm_runtime.doctor.worker import Event, Request, Task

Outcome = Literal["correct", "wrong", "unjudged", "refused", "crashed", "hung"]
Begun = Callable[[str, str], None]
"""begun(step model, unit): called when the trial of a step model begins."""

# Keys of the last event of a step model.
_FINISHED = {"outcome", "call_seconds", "operations"}


class Trial(BaseModel):
    """What one step model did on one compute unit."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    step_model: str
    unit: str
    outcome: Outcome
    """unjudged: it runs, but the bundle has no test vectors."""
    stage: str = "done"
    """Where it ended: "start" (of the child process), "load", "check" (the test vectors), "time", or "done"."""
    message: str = ""
    """Core ML's reason for a refusal; the signal and the last output of a crash."""
    load_seconds: float | None = None
    call_seconds: float | None = None
    """Median of a call at the shortest length."""
    agreement: Agreement | None = None
    operations: dict[str, int] | None = None
    """Operations by device in Core ML's plan; None without a plan."""
    no_plan: str = ""
    """Why Core ML gave no plan."""


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


def trials(bundle: Bundle, unit: str, names: Sequence[str], *, limit: float, begun: Begun) -> list[Trial]:
    """One trial of each named step model, in order. limit: seconds for each."""
    found = []
    for event in _events(bundle, "trial", unit, names, limit, begun):
        trial = Trial(**{"outcome": "unjudged", **event, "unit": unit})
        if trial.stage == "done" and trial.agreement is not None:
            correct = trial.agreement.correct(bundle.precision)
            trial = trial.model_copy(update={"outcome": "correct" if correct else "wrong"})
        found.append(trial)
    return found


def placed(bundle: Bundle, found: Sequence[Trial], *, limit: float) -> list[Trial]:
    """The trials; the correct ones on Core ML with their operations by device, or why there is no plan."""
    plans: dict[tuple[str, str], Event] = {}
    for unit in COMPUTE_UNITS:
        correct = [t.step_model for t in found if (t.unit, t.outcome) == (unit, "correct")]
        for event in _events(bundle, "placement", unit, correct, limit):
            plans[event["step_model"], unit] = {
                "operations": event.get("operations"),
                "no_plan": event.get("message", ""),
            }
    return [t.model_copy(update=plans.get((t.step_model, t.unit), {})) for t in found]


def fastest_correct(found: Iterable[Trial]) -> dict[str, Trial]:
    """For each step model the fastest correct trial, if there is one.

    The portable backend is chosen only for a step model that no unit of Core ML runs correctly.
    """
    correct = (t for t in found if t.outcome == "correct")
    best_first = sorted(correct, key=lambda t: (t.unit == PORTABLE, t.call_seconds or 0.0))
    return {trial.step_model: trial for trial in reversed(best_first)}


def endurance(
    bundle: Bundle, found: Sequence[Trial], minutes: float, *, limit: float, begun: Begun
) -> Iterator[Endurance]:
    """Trials with the chosen units until one lasts, and one with an fp32 AudioVAE if it ended on the CPU.

    found: the trials of each step model. limit: seconds without an answer.
    """
    lost: set[tuple[str, str]] = set()
    half = bundle.precision != "fp32" and not bundle.manifest.audio_vae_fp32
    other: Precision | None = "fp32" if half and "fp32" in bundle.manifest.precisions else None
    while units := _chosen_units(found, lost):
        trial = _lasting(bundle, units, minutes, limit, begun)
        yield trial
        if trial.outcome == "done":
            return
        failed = trial.step_model, units[trial.step_model]
        lost.add(failed)
        if other is not None and failed in {(AUDIO_VAE_DECODER, CPU), (AUDIO_VAE_ENCODER, CPU)}:
            vae = dict.fromkeys((AUDIO_VAE_ENCODER, AUDIO_VAE_DECODER), CPU)
            yield _lasting(open_bundle(bundle.folder, other), vae, minutes, limit, begun)
            other = None


def _chosen_units(found: Sequence[Trial], lost: set[tuple[str, str]]) -> dict[str, str]:
    """The best compute unit of Core ML for each step model. lost: step models and units to avoid."""
    chosen = fastest_correct(t for t in found if (t.step_model, t.unit) not in lost)
    return {name: trial.unit for name, trial in chosen.items() if trial.unit in COMPUTE_UNITS}


def _lasting(
    bundle: Bundle, units: Mapping[str, str], minutes: float, limit: float, begun: Begun
) -> Endurance:
    last: Event = {"step_model": next(iter(units))}

    def heard(event: Event) -> None:
        last.update(event)
        name = event["step_model"]
        begun(name, f"{units[name]}, {last.get('elapsed', 0) / 60:.1f} of {minutes:g} minutes")

    request = _request(bundle, "endurance", CPU, tuple(units), limit, units=dict(units), seconds=60 * minutes)
    ending = run_child(request, heard)
    return Endurance(
        precision=bundle.precision,
        units=dict(units),
        outcome=ending.outcome,
        seconds=last.get("elapsed", 0.0),
        step_model="" if ending.outcome == "done" else last["step_model"],
        message=ending.message,
    )


def _request(
    bundle: Bundle, task: Task, unit: str, names: Sequence[str], limit: float, **more: Any
) -> Request:
    return Request(
        task=task,
        bundle=str(bundle.folder),
        precision=bundle.precision,
        unit=unit,
        step_models=tuple(names),
        limit=limit,
        judged=bool(bundle.manifest.vector_files()),
        **more,
    )


def _events(
    bundle: Bundle,
    task: Task,
    unit: str,
    names: Sequence[str],
    limit: float,
    begun: Begun = lambda name, unit: None,
) -> Iterator[Event]:
    """The merged events of each named step model, in order. After a crash another child continues with the next."""
    left = tuple(names)
    while left:
        found = _of_one_child(_request(bundle, task, unit, left, limit), begun)
        yield from found
        left = left[len(found) :]


def _of_one_child(request: Request, begun: Begun) -> list[Event]:
    """The merged events of the step models that one child finished, and of the one that ended it."""
    found: dict[str, Event] = {}

    def heard(event: Event) -> None:
        name = event["step_model"]
        if name not in found:
            begun(name, request.unit)
        found[name] = found.get(name, {}) | event

    ending = run_child(request, heard)
    unfinished = [n for n in request.step_models if not _FINISHED & found.get(n, {}).keys()]
    if unfinished:
        before = found.get(unfinished[0], {"step_model": unfinished[0], "stage": "start"})
        outcome = "crashed" if ending.outcome == "done" else ending.outcome
        found[unfinished[0]] = before | {"outcome": outcome, "message": ending.message}
    return [found[name] for name in request.step_models if name in found]
