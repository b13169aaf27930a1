"""The child process of a trial. It reports each stage immediately as a line of JSON, because Core ML may crash.

An event has the `step_model`, the `stage` that begins, and the results of the previous stage; or an `outcome` and its
`message`. Stages: load, check (the vectors), time, done; in an endurance trial: load, running, done.
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
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from pydantic import BaseModel

from voxcpm_constants.core_ml_errors import core_ml_reason
from voxcpm_constants.step_models import Precision, StepModel, StepSizes
from voxcpm_constants.vectors import (
    CHAIN,
    Array,
    Vectors,
    VectorStream,
    filled_caches,
    read_vectors,
    stored_state,
    streams,
)
from voxcpm_runtime.backends.core_ml.compute_units import AUTO, COREAI, PORTABLE
from voxcpm_runtime.backends.loading import Backend, load_step_models
from voxcpm_runtime.backends.machine import median_seconds
from voxcpm_runtime.backends.step_function import StepFunction
from voxcpm_runtime.bundle.opening import Bundle, open_bundle

Event = dict[str, Any]

FLOORS: dict[Precision, float] = {"fp32": 0.9999, "fp16": 0.995, "int8": 0.965, "int4": 0.73}
"""Minimum correlation with the float32 test vectors: at least three times as far from 1 as the worst measured on the
portable backend, also with every result rounded to fp16 (TRIALS.md). The base LM is worst, because its quantiser
sometimes rounds to another level, and in int4 because of its weights."""

_BACKENDS: dict[str, Backend] = {PORTABLE: "portable", COREAI: "coreai"}
_IMPORTS = {PORTABLE: "voxcpm_runtime.backends.portable", COREAI: "coreai.runtime"}
"""Unit -> its slow import; the others import coremltools."""
_TIMED_CALLS = 30
_TURN_SECONDS = 1.0


def main() -> None:
    """Run the trials and write their events. Arguments: the request as JSON, a file descriptor to write to, the timeout
    of one step model in seconds, and the duration of an endurance trial in seconds (0: none).
    """
    request, descriptor, limit, seconds = sys.argv[1:]
    given = json.loads(request)
    bundle, units = open_bundle(given["bundle"], given["precision"]), given["units"]
    with os.fdopen(int(descriptor), "wb", buffering=0) as reports:
        for event in _endurance(bundle, units, float(seconds)) if float(seconds) else _trials(bundle, units):
            reports.write(json.dumps(event).encode() + b"\n")
            # The default action of SIGALRM works even while Core ML holds the GIL; a Python handler would not.
            if event.get("stage") in ("load", "running"):
                signal.alarm(int(limit))


def _trials(bundle: Bundle, units: dict[str, str]) -> Iterator[Event]:
    # Imported first, so that it does not count as a step model's loading time.
    importlib.import_module(_IMPORTS.get(next(iter(units.values())), "coremltools"))
    for name, unit in units.items():
        try:
            for event in _trial(bundle, name, unit):
                yield {"step_model": name, **event}
        except Exception as error:  # noqa: BLE001 - coremltools raises what Core ML gives it, of any class
            yield {"step_model": name, "outcome": "refused", "message": core_ml_reason(error)}
        gc.collect()


def _trial(bundle: Bundle, name: str, unit: str) -> Iterator[Event]:
    declared, sizes = bundle.manifest.step_models[name], bundle.manifest.sizes
    yield {"stage": "load"}
    began = time.perf_counter()
    backend = _BACKENDS.get(unit, "coreml")
    units = AUTO if unit in _BACKENDS else unit
    model = load_step_models(bundle, backend, names=[name], compute_units=units, first_use=None)[name]
    yield {"stage": "check", "load_seconds": time.perf_counter() - began}
    vectors = _vectors(bundle, declared)
    agreement = None if vectors is None else compare(model, declared, sizes, vectors).model_dump()
    yield {"stage": "time", "agreement": agreement}
    call = _repeatable_call(model, declared, sizes, vectors)
    yield {"stage": "done", "call_seconds": median_seconds(call, _TIMED_CALLS)}


def _endurance(bundle: Bundle, units: dict[str, str], seconds: float) -> Iterator[Event]:
    """Call the step models in turn, for a second each."""
    names, sizes = tuple(units), bundle.manifest.sizes
    importlib.import_module("coremltools")
    yield {"step_model": names[0], "stage": "load"}
    # The models load together, so one rejection fails the whole trial.
    models = load_step_models(bundle, "coreml", names=names, compute_units=units, first_use=None)
    calls = {}
    for name in names:
        declared = bundle.manifest.step_models[name]
        calls[name] = _repeatable_call(models[name], declared, sizes, _vectors(bundle, declared))
    began = time.monotonic()
    for name in itertools.cycle(names):
        elapsed = time.monotonic() - began
        if elapsed >= seconds:
            break
        yield {"step_model": name, "stage": "running", "elapsed": elapsed}
        until = time.monotonic() + _TURN_SECONDS
        while time.monotonic() < until:
            calls[name]()
    yield {"step_model": names[-1], "stage": "done", "elapsed": time.monotonic() - began}


def _vectors(bundle: Bundle, declared: StepModel) -> Vectors | None:
    manifest = bundle.manifest
    return read_vectors(bundle.folder, declared, manifest.sizes) if manifest.vector_files() else None


class VectorAgreement(BaseModel, extra="forbid", frozen=True):
    """Correlations of a step model's results with its test vectors, each the minimum over several tensors."""

    streams: dict[str, float]
    """Outputs by stream (`voxcpm_constants.vectors`): `chain`, and every length at either end of the cache."""
    chain: tuple[float, ...]  # Outputs of each call of `chain` in order, to show drift
    state: float | None  # State after the streams; None for a step model without state

    @property
    def worst(self) -> float:
        """The minimum of all."""
        return min((*self.streams.values(), *([] if self.state is None else [self.state])))


def correlation(values: Array, reference: Array) -> float:
    """1 - |v - r|² / (|v|² + |r|²), which is 2⟨v, r⟩ / (|v|² + |r|²), over all elements in float64.

    Unlike Pearson's correlation it drops for a wrong scale or offset. 1 if both are zero; 0 if `values` has NaN or
    infinities, or another shape.
    """
    v, r = (np.asarray(array, np.float64).ravel() for array in (values, reference))
    if values.shape != reference.shape or not np.isfinite(v).all():
        return 0.0
    power = float(v @ v + r @ r)
    return 2 * float(v @ r) / power if power else 1.0


def min_correlation(found: Mapping[str, Array], expected: Mapping[str, Array]) -> float:
    """The lowest correlation among the expected tensors with those found, by name."""
    return min(correlation(found[name], array) for name, array in expected.items())


def compare(model: StepFunction, declared: StepModel, sizes: StepSizes, vectors: Vectors) -> VectorAgreement:
    """The agreement of a step model with its test vectors."""
    by_stream: dict[str, tuple[float, ...]] = {}
    states: list[float] = []
    for stream in streams(declared, sizes):
        tensors = stream.declared
        state = model.new_state() if tensors.state else None
        if state is not None and stream.filled:
            left = {t.name: vectors[f"{CHAIN}/state/{t.name}"] for t in tensors.state}
            state.set_rows(0, filled_caches(left, sizes))
        calls = []
        for call in range(stream.calls):
            outputs = model(_inputs(stream, call, vectors), state)
            expected = {t.name: vectors[stream.key("out", t.name)][call] for t in tensors.outputs}
            calls.append(min_correlation(outputs, expected))
        by_stream[stream.name] = tuple(calls)
        if state is not None:
            every_row = state.rows(0, max(t.shape_at(0)[2] for t in tensors.state))
            expected = {t.name: vectors[stream.key("state", t.name)] for t in tensors.state}
            states.append(min_correlation(stored_state(stream, every_row), expected))
    minima = {name: min(calls) for name, calls in by_stream.items()}
    return VectorAgreement(streams=minima, chain=by_stream[CHAIN], state=min(states, default=None))


def _repeatable_call(
    model: StepFunction, declared: StepModel, sizes: StepSizes, vectors: Vectors | None
) -> Callable[[], object]:
    """A call at the shortest length, with the same inputs (zeros without vectors) and state each time."""
    chain = streams(declared, sizes)[0]
    given: Mapping[str, Array] = (
        {t.name: np.zeros(t.shape_at(0), t.dtype) for t in chain.declared.inputs}
        if vectors is None
        else _inputs(chain, 0, vectors)
    )
    state = model.new_state() if declared.state else None
    return lambda: model(given, state)


def _inputs(stream: VectorStream, call: int, vectors: Vectors) -> dict[str, Array]:
    return {t.name: vectors[stream.key("in", t.name)][call] for t in stream.declared.inputs}
