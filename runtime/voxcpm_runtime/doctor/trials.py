"""Trials of step models on one compute unit, and which units they choose."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict

from voxcpm_constants.step_models import Precision
from voxcpm_runtime.backends.compute_units import PORTABLE
from voxcpm_runtime.bundle.opening import Bundle
from voxcpm_runtime.doctor.agreement import Agreement
from voxcpm_runtime.doctor.children import run_child
from voxcpm_runtime.doctor.worker import Event, Request, Task

Outcome = Literal["correct", "wrong", "unjudged", "refused", "crashed", "hung"]
Begun = Callable[[str, str], None]
"""begun(step model, unit): called when the trial of a step model begins."""

# What only the last event of a step model has.
_FINISHED = {"outcome", "call_seconds"}


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
    """Operations by device, by Core ML's own plan; None where it is unknown."""


def trials(bundle: Bundle, unit: str, names: Sequence[str], *, limit: float, begun: Begun) -> list[Trial]:
    """One trial for each named step model, in order. limit: seconds for one of them."""
    found: list[Trial] = []
    while left := names[len(found) :]:
        # After a crash a new child goes on behind the step model that crashed.
        found += _of_one_child(_request(bundle, "trial", unit, left, limit), bundle.precision, begun)
    return found


def placed(bundle: Bundle, chosen: Iterable[Trial], *, limit: float) -> dict[str, dict[str, int]]:
    """Operations by device of the chosen trials, by step model; none where Core ML tells nothing."""
    found: dict[str, dict[str, int]] = {}

    def heard(event: Event) -> None:
        if "operations" in event:
            found[event["step_model"]] = event["operations"]

    by_unit: dict[str, list[str]] = {}
    for trial in chosen:
        by_unit.setdefault(trial.unit, []).append(trial.step_model)
    for unit, names in by_unit.items():
        run_child(_request(bundle, "placement", unit, names, limit), heard)
    return found


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


def _of_one_child(request: Request, precision: Precision, begun: Begun) -> list[Trial]:
    """Trials of the first step models of a request: those that one child finished, and the one that ended it."""
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
    return [_trial(found[name], request.unit, precision) for name in request.step_models if name in found]


def _trial(event: Event, unit: str, precision: Precision) -> Trial:
    trial = Trial(**{"outcome": "unjudged", **event, "unit": unit})
    if trial.stage != "done" or trial.agreement is None:
        return trial
    return trial.model_copy(update={"outcome": "correct" if trial.agreement.correct(precision) else "wrong"})
