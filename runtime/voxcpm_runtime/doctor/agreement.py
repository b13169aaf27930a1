"""Agreement of a step model's results with the bundle's test vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from pydantic import BaseModel, ConfigDict

from voxcpm_constants.step_models import Precision, StepModel, StepSizes
from voxcpm_constants.vectors import CHAIN, Array, Stream, Vectors, filled_caches, left_by, streams
from voxcpm_runtime.backends.step_function import StepFunction

FLOORS: dict[Precision, float] = {"fp32": 0.9999, "fp16": 0.995, "int8": 0.99, "int4": 0.85}
"""The lowest accepted correlation with the float32 test vectors: at least three times as far from 1 as the worst that
was measured on the portable backend, also with every result rounded to fp16 (TRIALS.md). The worst is the base LM,
because its quantiser sometimes rounds to another level, and in int4 because of its weights."""


class Agreement(BaseModel):
    """Correlations of a step model's results with its test vectors, each the minimum over several tensors."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    streams: dict[str, float]
    """Outputs, by stream of `voxcpm_constants.vectors`: `chain`, and every length at either end of the cache."""
    chain: tuple[float, ...]
    """Outputs of each call of `chain` in order: the drift."""
    state: float | None
    """State after the streams; None for a step model without state."""

    @property
    def worst(self) -> float:
        """The minimum of all."""
        return min((*self.streams.values(), *([] if self.state is None else [self.state])))

    def correct(self, precision: Precision) -> bool:
        """Whether no correlation is below the precision's floor."""
        return self.worst >= FLOORS[precision]


def correlation(values: Array, reference: Array) -> float:
    """1 - |v - r|² / (|v|² + |r|²), which is 2⟨v, r⟩ / (|v|² + |r|²), over all elements in float64.

    Unlike Pearson's correlation it is lower for a wrong scale or offset. 1 for two zeros; 0 for NaN, infinity and
    different shapes.
    """
    v, r = (np.asarray(array, np.float64).ravel() for array in (values, reference))
    if values.shape != reference.shape or not np.isfinite(v).all():
        return 0.0
    power = float(v @ v + r @ r)
    return 2 * float(v @ r) / power if power else 1.0


def lowest_correlation(found: Mapping[str, Array], expected: Mapping[str, Array]) -> float:
    """The lowest correlation of the expected tensors with those of the same name."""
    return min(correlation(found[name], array) for name, array in expected.items())


def compared(model: StepFunction, declared: StepModel, sizes: StepSizes, vectors: Vectors) -> Agreement:
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
            calls.append(lowest_correlation(outputs, expected))
        by_stream[stream.name] = tuple(calls)
        if state is not None:
            every_row = state.rows(0, max(t.shape_at(0)[2] for t in tensors.state))
            expected = {t.name: vectors[stream.key("state", t.name)] for t in tensors.state}
            states.append(lowest_correlation(left_by(stream, every_row), expected))
    return Agreement(
        streams={name: min(calls) for name, calls in by_stream.items()},
        chain=by_stream[CHAIN],
        state=min(states, default=None),
    )


def repeatable_call(
    model: StepFunction, declared: StepModel, sizes: StepSizes, vectors: Vectors | None
) -> Callable[[], object]:
    """A function that calls a step model at the shortest length, with the same inputs (without vectors: zeros) and
    the same state each time.
    """
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
