"""Trials of step models in child processes, which may crash or hang: each step model alone on a compute unit, or an
endurance trial of all in turn, in which a step model that crashes gets its next best unit.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal

from pydantic import BaseModel

from voxcpm_constants.json_files import parsed_json
from voxcpm_runtime.backends.compilation import how_it_ended, python_child
from voxcpm_runtime.backends.core_ml.compute_units import COMPUTE_UNITS, PORTABLE
from voxcpm_runtime.bundle.opening import Bundle
from voxcpm_runtime.doctor.worker import FLOORS, Event, VectorAgreement

Outcome = Literal["correct", "wrong", "unjudged", "refused", "crashed", "hung"]
Ending = Literal["done", "crashed", "hung"]
OnStart = Callable[[str, str], None]  # on_start(step model, unit): called at the start of a trial

# A child has one more minute until its first event, because importing coremltools is slow.
_PROGRAM = """
import signal, sys
signal.alarm(60 + int(sys.argv[3]))
from voxcpm_runtime.doctor.worker import main
main()
"""
_TAIL_BYTES = 4096


class Trial(BaseModel, extra="forbid", frozen=True):
    """The result of one step model on one compute unit."""

    step_model: str
    unit: str
    outcome: Outcome  # unjudged: it runs, but the bundle has no test vectors
    stage: str = "done"  # Where it ended: "start" (of the child process), "load", "check", "time", or "done"
    message: str = ""  # Core ML's reason for a rejection; the signal and last output of a crash
    load_seconds: float | None = None
    call_seconds: float | None = None  # Median of a call at the shortest length
    agreement: VectorAgreement | None = None


class Endurance(BaseModel, extra="forbid", frozen=True):
    """The result of one endurance trial."""

    units: dict[str, str]  # The compute unit of each step model
    outcome: Ending
    seconds: float  # Duration
    step_model: str = ""  # The step model that failed
    message: str = ""


def trials(
    bundle: Bundle, unit: str, names: Sequence[str], *, limit: float, on_start: OnStart
) -> list[Trial]:
    """One trial of each step model on a unit, in order. limit: timeout in seconds for each.

    After a crash, a new child continues with the next step model.
    """
    found: list[Trial] = []
    while left := names[len(found) :]:
        events: dict[str, Event] = {}

        def on_event(event: Event, events: dict[str, Event] = events) -> None:
            name = event["step_model"]
            if name not in events:
                on_start(name, unit)
            events[name] = events.get(name, {}) | event

        ending, message = _run_child(bundle, dict.fromkeys(left, unit), limit, on_event)
        for name in left:
            event = events.get(name, {"step_model": name, "stage": "start"})
            finished = "outcome" in event or event["stage"] == "done"
            if not finished:
                event |= {"outcome": "crashed" if ending == "done" else ending, "message": message}
            trial = Trial(**{"outcome": "unjudged", **event, "unit": unit})
            if trial.stage == "done" and trial.agreement is not None:
                correct = trial.agreement.worst >= FLOORS[bundle.precision]
                trial = trial.model_copy(update={"outcome": "correct" if correct else "wrong"})
            found.append(trial)
            if not finished:
                break
    return found


def fastest_correct(found: Iterable[Trial]) -> dict[str, Trial]:
    """The fastest correct trial of each step model that has one.

    The portable backend is chosen only if no Core ML unit is correct.
    """
    correct = (t for t in found if t.outcome == "correct")
    best_first = sorted(correct, key=lambda t: (t.unit == PORTABLE, t.call_seconds or 0.0))
    return {trial.step_model: trial for trial in reversed(best_first)}


def endurance(
    bundle: Bundle, found: Sequence[Trial], minutes: float, *, limit: float, on_start: OnStart
) -> Iterator[Endurance]:
    """Endurance trials with the best compute units, until one succeeds.

    found: the trials of each step model. limit: timeout in seconds between two events.
    """
    lost: set[tuple[str, str]] = set()
    while True:
        chosen = fastest_correct(t for t in found if (t.step_model, t.unit) not in lost)
        units = {name: trial.unit for name, trial in chosen.items() if trial.unit in COMPUTE_UNITS}
        if not units:
            return
        last: Event = {"step_model": next(iter(units)), "elapsed": 0.0}

        def on_event(event: Event, units: dict[str, str] = units, last: Event = last) -> None:
            last.update(event)
            place = f"{units[event['step_model']]}, {last['elapsed'] / 60:.1f} of {minutes:g} minutes"
            on_start(event["step_model"], place)

        outcome, message = _run_child(bundle, units, limit, on_event, 60 * minutes)
        failed = "" if outcome == "done" else last["step_model"]
        yield Endurance(
            units=units, outcome=outcome, seconds=last["elapsed"], step_model=failed, message=message
        )
        if outcome == "done":
            return
        lost.add((failed, units[failed]))


def _run_child(
    bundle: Bundle,
    units: Mapping[str, str],
    limit: float,
    on_event: Callable[[Event], None],
    seconds: float = 0.0,
) -> tuple[Ending, str]:
    """Run step models in a child process, and pass its events to `on_event`. Returns how it ended, and why.

    seconds: duration of an endurance trial, otherwise 0. The child is killed when this function returns or raises, as
    Ctrl-C does not reach it.
    """
    request = {"bundle": str(bundle.folder), "precision": bundle.precision, "units": dict(units)}
    timing = (str(math.ceil(limit)), str(seconds))
    receiving, sending = os.pipe()
    with os.fdopen(receiving, "rb") as reported, tempfile.TemporaryFile() as errors:
        child = python_child(
            ["-c", _PROGRAM, json.dumps(request), str(sending), *timing],
            pass_fds=(sending,),
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
            # A new session, so that its children are killed with it.
            start_new_session=True,
        )
        os.close(sending)
        offset = None
        try:
            for line in reported:
                offset = errors.seek(0, os.SEEK_END)
                if line.endswith(b"\n"):  # not cut off by a crash
                    on_event(parsed_json(line))
            code = child.wait()
        finally:
            # macOS refuses a signal to a process group with only a zombie.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        if code == -signal.SIGALRM:
            return "hung", "did not start in time" if offset is None else f"no answer within {limit:g} s"
        if code == 0:
            return "done", ""
        errors.seek(max(offset or 0, errors.seek(0, os.SEEK_END) - _TAIL_BYTES))
        return "crashed", how_it_ended(code, errors.read())
