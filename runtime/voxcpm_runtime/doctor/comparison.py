"""The trial of one step model in this process: its results beside the test vectors, and the time of a call."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

import numpy as np

from voxcpm_constants.step_models import StepModel, StepSizes
from voxcpm_constants.vectors import (
    CHAIN,
    Array,
    Stream,
    Vectors,
    filled_caches,
    left_by,
    streams,
)
from voxcpm_runtime.backends.step_function import StepFunction, StepState
from voxcpm_runtime.doctor.agreement import Agreement, lowest_correlation

_TIMED_SECONDS, _TIMED_CALLS, _MIN_CALLS = 1.0, 30, 3


def compared(model: StepFunction, declared: StepModel, sizes: StepSizes, vectors: Vectors) -> Agreement:
    """The agreement of a step model with its test vectors."""
    by_stream: dict[str, float] = {}
    chain: list[float] = []
    states: list[float] = []
    for stream in streams(declared, sizes):
        state = _state_before(model, stream, sizes, vectors)
        calls = []
        for call in range(stream.calls):
            outputs = model(_inputs(stream, call, vectors), state)
            expected = {t.name: vectors[stream.key("out", t.name)][call] for t in declared.outputs}
            calls.append(lowest_correlation(outputs, expected))
        by_stream[stream.name] = min(calls)
        chain = chain or calls
        if state is not None:
            # All rows: of the caches every position, of the contexts all there is.
            whole = state.rows(0, max(t.shape_at(0)[2] for t in stream.declared.state))
            expected = {t.name: vectors[stream.key("state", t.name)] for t in declared.state}
            states.append(lowest_correlation(left_by(stream, whole, sizes), expected))
    return Agreement(streams=by_stream, chain=tuple(chain), state=min(states) if states else None)


def median_seconds(
    model: StepFunction, declared: StepModel, sizes: StepSizes, vectors: Vectors | None
) -> float:
    """Median seconds of a call at the shortest length. Without vectors the inputs are zeros."""
    call = repeated(model, declared, sizes, vectors)
    call()
    seconds: list[float] = []
    while len(seconds) < _MIN_CALLS or (len(seconds) < _TIMED_CALLS and sum(seconds) < _TIMED_SECONDS):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def repeated(
    model: StepFunction, declared: StepModel, sizes: StepSizes, vectors: Vectors | None
) -> Callable[[], object]:
    """A function that calls a step model at the shortest length, always with the same inputs and one state."""
    chain = streams(declared, sizes)[0]
    given: Mapping[str, Array] = (
        {t.name: np.zeros(t.shape_at(0), t.dtype) for t in chain.declared.inputs}
        if vectors is None
        else _inputs(chain, 0, vectors)
    )
    state = model.new_state() if declared.state else None
    return lambda: model(given, state)


def _inputs(stream: Stream, call: int, vectors: Vectors) -> dict[str, Array]:
    return {t.name: vectors[stream.key("in", t.name)][call] for t in stream.declared.inputs}


def _state_before(
    model: StepFunction, stream: Stream, sizes: StepSizes, vectors: Vectors
) -> StepState | None:
    if not stream.declared.state:
        return None
    state = model.new_state()
    if stream.filled:
        left = {t.name: vectors[f"{CHAIN}/state/{t.name}"] for t in stream.declared.state}
        state.set_rows(0, filled_caches(left, sizes))
    return state
