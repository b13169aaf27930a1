"""Trials of step models on one compute unit, and which units they choose."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict

from voxcpm_constants.step_models import Precision
from voxcpm_runtime.backends.core_ml.compute_units import COMPUTE_UNITS, PORTABLE
from voxcpm_runtime.bundle.opening import Bundle
from voxcpm_runtime.doctor.agreement import Agreement
from voxcpm_runtime.doctor.children import run_child
from voxcpm_runtime.doctor.worker import Event, Request, Task

Outcome = Literal["correct", "wrong", "unjudged", "refused", "crashed", "hung"]
Begun = Callable[[str, str], None]
"""begun(step model, unit): called when the trial of a step model begins."""

# What only the last event of a step model has.
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
    """Core ML's own words for a refusal; the signal and the last words of a crash."""
    load_seconds: float | None = None
    call_seconds: float | None = None
    """Median of a call at the shortest length."""
    agreement: Agreement | None = None
    operations: dict[str, int] | None = None
    """Operations by device, by Core ML's own plan; None where there is none."""
    no_plan: str = ""
    """Why Core ML gave no plan."""


def trials(bundle: Bundle, unit: str, names: Sequence[str], *, limit: float, begun: Begun) -> list[Trial]:
    """One trial for each named step model, in order. limit: seconds for one of them."""
    events = _events(bundle, "trial", unit, names, limit, begun)
    return [_trial(event, unit, bundle.precision) for event in events]


def placed(bundle: Bundle, found: Sequence[Trial], *, limit: float) -> list[Trial]:
    """The trials, and in the correct ones on Core ML its operations by device, or why there is no plan."""
    plans: dict[tuple[str, str], Event] = {}
    for unit in COMPUTE_UNITS:
        correct = [t.step_model for t in found if (t.unit, t.outcome) == (unit, "correct")]
        for event in _events(bundle, "placement", unit, correct, limit):
            plans[event["step_model"], unit] = event
    return [t.model_copy(update=_plan(plans.get((t.step_model, t.unit), {}))) for t in found]


def _plan(event: Event) -> Event:
    return {"operations": event.get("operations"), "no_plan": event.get("message", "")}


def fastest_correct(found: Iterable[Trial]) -> dict[str, Trial]:
    """For each step model the correct trial whose call took the least time; none where no unit is correct.

    The portable backend is chosen only for a step model that no unit of Core ML runs correctly.
    """
    correct = sorted((t for t in found if t.outcome == "correct"), key=_cost)
    return {trial.step_model: trial for trial in reversed(correct)}


def _cost(trial: Trial) -> tuple[bool, float]:
    return trial.unit == PORTABLE, trial.call_seconds or 0.0


def _request(bundle: Bundle, task: Task, unit: str, names: Sequence[str], limit: float) -> Request:
    return Request(
        task=task,
        bundle=str(bundle.folder),
        precision=bundle.precision,
        unit=unit,
        step_models=tuple(names),
        limit=limit,
        judged=bool(bundle.manifest.vector_files()),
    )


def _events(
    bundle: Bundle,
    task: Task,
    unit: str,
    names: Sequence[str],
    limit: float,
    begun: Begun = lambda name, unit: None,
) -> Iterator[Event]:
    """The events of each named step model as one, in order."""
    left = tuple(names)
    while left:
        # After a crash a new child goes on behind the step model that crashed.
        found = _of_one_child(_request(bundle, task, unit, left, limit), begun)
        yield from found
        left = left[len(found) :]


def _of_one_child(request: Request, begun: Begun) -> list[Event]:
    """Events of the first step models of a request: those that one child finished, and the one that ended it."""
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


def _trial(event: Event, unit: str, precision: Precision) -> Trial:
    trial = Trial(**{"outcome": "unjudged", **event, "unit": unit})
    if trial.stage != "done" or trial.agreement is None:
        return trial
    return trial.model_copy(update={"outcome": "correct" if trial.agreement.correct(precision) else "wrong"})
