"""The child process of a trial: it runs the step models in order and reports each stage as a line of JSON.

An event is a dictionary with `step_model`, the `stage` that begins, and the results of the stage before it; or an
`outcome` and its message. Core ML may end this process at any time, so each result is reported as soon as it is known.
"""

from __future__ import annotations

import gc
import importlib
import itertools
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from voxcpm_constants.errors import core_ml_reason
from voxcpm_constants.vectors import read_vectors
from voxcpm_runtime.backends.choice import Backend
from voxcpm_runtime.backends.core_ml.compute_units import AUTO, COREAI, PORTABLE
from voxcpm_runtime.backends.loading import load_step_models
from voxcpm_runtime.bundle.opening import Bundle, open_bundle
from voxcpm_runtime.doctor.agreement import compared, median_seconds, repeated
from voxcpm_runtime.doctor.placement import operations_by_device

Event = dict[str, Any]
Task = Literal["trial", "placement", "endurance"]


class Request(BaseModel):
    """The work of a child process."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    task: Task
    bundle: str
    precision: str
    unit: str
    """A compute unit of Core ML, or PORTABLE, or COREAI."""
    step_models: tuple[str, ...]
    limit: float
    """Seconds for one step model."""
    judged: bool
    """Whether the bundle has test vectors."""
    units: dict[str, str] = {}
    """For an endurance trial: the compute unit of each step model."""
    seconds: float = 0.0
    """For an endurance trial: how long it lasts."""


def main() -> None:
    """Answer the request in the first argument through the file descriptor in the second."""
    request = Request.model_validate_json(sys.argv[1])
    with os.fdopen(int(sys.argv[2]), "wb", buffering=0) as reports:
        for event in (_endurance if request.task == "endurance" else _events)(request):
            reports.write(json.dumps(event).encode() + b"\n")


def _events(request: Request) -> Iterator[Event]:
    bundle = open_bundle(request.bundle, request.precision)
    work = _WORK[request.task]
    # Imported first, so that this time does not count as a step model's loading time.
    importlib.import_module(_IMPORTED.get(request.unit, "coremltools"))
    for name in request.step_models:
        # The parent kills what takes too long. If it is gone, the system does, as no Python handler would run.
        signal.alarm(int(request.limit) + 30)
        try:
            for event in work(bundle, name, request):
                yield {"step_model": name, **event}
        except Exception as error:  # noqa: BLE001 - coremltools raises what Core ML gives it, of any class
            yield {"step_model": name, "outcome": "refused", "message": core_ml_reason(error)}
        gc.collect()


def _trial(bundle: Bundle, name: str, request: Request) -> Iterator[Event]:
    declared, sizes = bundle.manifest.step_models[name], bundle.manifest.sizes
    yield {"stage": "load"}
    began = time.perf_counter()
    backend = _BACKENDS.get(request.unit, "coreml")
    units = AUTO if request.unit in _BACKENDS else request.unit
    model = load_step_models(bundle, backend, names=[name], compute_units=units, first_use=None)[name]
    yield {"stage": "check", "load_seconds": time.perf_counter() - began}
    vectors = read_vectors(bundle.folder, declared, sizes) if request.judged else None
    agreement = None if vectors is None else compared(model, declared, sizes, vectors).model_dump()
    yield {"stage": "time", "agreement": agreement}
    yield {"stage": "done", "call_seconds": median_seconds(model, declared, sizes, vectors)}


def _placement(bundle: Bundle, name: str, request: Request) -> Iterator[Event]:
    yield {"stage": "load"}
    operations: Counter[str] = Counter()
    for part in bundle.manifest.parts(name):
        package = bundle.folder / bundle.manifest.package_path(bundle.precision, part.name)
        digest = bundle.manifest.package_key(bundle.precision, part.name)
        operations += operations_by_device(package, digest, request.unit)
    yield {"stage": "done", "operations": operations}


def _endurance(request: Request) -> Iterator[Event]:
    """All step models of the request in turn, for its time, with an event before each turn of a second."""
    bundle = open_bundle(request.bundle, request.precision)
    importlib.import_module("coremltools")
    names, sizes = request.step_models, bundle.manifest.sizes
    yield {"step_model": names[0], "stage": "load"}
    # The models load together, so a refusal ends the whole trial.
    models = load_step_models(bundle, "coreml", names=names, compute_units=request.units, first_use=None)
    calls = {}
    for name in names:
        declared = bundle.manifest.step_models[name]
        vectors = read_vectors(bundle.folder, declared, sizes) if request.judged else None
        calls[name] = repeated(models[name], declared, sizes, vectors)
    began = time.monotonic()
    for name in itertools.cycle(names):
        elapsed = time.monotonic() - began
        if elapsed >= request.seconds:
            break
        signal.alarm(int(request.limit) + 30)
        yield {"step_model": name, "stage": "running", "elapsed": elapsed}
        until = time.monotonic() + _SECONDS_IN_TURN
        while time.monotonic() < until:
            calls[name]()
    yield {"step_model": names[-1], "stage": "done", "elapsed": time.monotonic() - began}


_SECONDS_IN_TURN = 1.0

_BACKENDS: dict[str, Backend] = {PORTABLE: "portable", COREAI: "coreai"}
_IMPORTED = {PORTABLE: "voxcpm_runtime.backends.portable", COREAI: "coreai.runtime"}
"""Slow imports of a unit; the others need coremltools."""

_WORK: dict[Task, Callable[[Bundle, str, Request], Iterator[Event]]] = {
    "trial": _trial,
    "placement": _placement,
}

if __name__ == "__main__":
    main()
