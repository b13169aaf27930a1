"""Calls of step models that were converted for a batch, made for some of its slots: rows in, rows out.

Each slot has its own rows in the inputs, the outputs and the KV caches, and what a slot gets depends on these alone.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from voxcpm_constants.step_models import BASE_LM_STEP, FEAT_ENCODER, LOCDIT_STEP, RESIDUAL_LM_STEP
from voxcpm_runtime.backends.step_function import Array
from voxcpm_runtime.model.driver import Driver

Inputs = Mapping[str, Array]
"""The inputs of one slot's call, by name."""
_WITH_CACHE = (BASE_LM_STEP, RESIDUAL_LM_STEP)
_CHUNKED = {FEAT_ENCODER: "patches", BASE_LM_STEP: "embeddings", RESIDUAL_LM_STEP: "embeddings"}


def items(model: str, inputs: Inputs) -> int:
    """Number of embeddings or patches in a call; 1 for the DiT."""
    return 1 if model == LOCDIT_STEP else inputs[_CHUNKED[model]].shape[1]


class SharedCalls:
    """The step models of a batch and the KV caches of its slots. One call at a time."""

    def __init__(self, driver: Driver) -> None:
        self._models = driver.models
        self._size = driver.sizes.batch
        self._length = driver.sizes.kv_length
        shared = _WITH_CACHE if self._size > 1 else ()
        self._states = {name: driver.models[name].new_state() for name in shared}
        self._ends = {name: [0] * self._size for name in shared}
        """For each slot, the first cache position that has no row yet."""
        self._written = {name: [0] * self._size for name in shared}
        """For each slot, the first cache position that is zero since the beginning: rows without use lie before it."""

    def run(self, model: str, asked: Mapping[int, Inputs]) -> dict[int, dict[str, Array]]:
        """The outputs of one call, by slot. asked: the inputs of some slots, all of equal shapes."""
        if model == LOCDIT_STEP:
            return self._pairs(asked)
        return self._patches(asked) if model == FEAT_ENCODER else self._lm(model, asked)

    def rows(self, slot: int, model: str, start: int, stop: int) -> dict[str, Array]:
        """Copies of positions start..stop of a slot's KV caches, as in `StepState.rows`."""
        first = slot * self._length
        return self._states[model].rows(first + start, first + stop)

    def set_rows(self, slot: int, model: str, start: int, rows: Mapping[str, Array]) -> None:
        """Overwrite positions of a slot's KV caches from `start` on, as in `StepState.set_rows`."""
        self._states[model].set_rows(slot * self._length + start, rows)
        self._ends[model][slot] = start + max((array.shape[2] for array in rows.values()), default=0)
        self._written[model][slot] = max(self._written[model][slot], self._ends[model][slot])

    def clear(self, slot: int, model: str) -> None:
        """Fill a slot's KV caches with zeros, as far as they were written: masked positions must be finite, too."""
        written = self._written[model][slot]
        if written:
            empty = self._states[model].rows(0, 0)
            shapes = {name: (*array.shape[:2], written, *array.shape[3:]) for name, array in empty.items()}
            self.set_rows(
                slot, model, 0, {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
            )
        self._ends[model][slot] = self._written[model][slot] = 0

    def _pairs(self, asked: Mapping[int, Inputs]) -> dict[int, dict[str, Array]]:
        """One DiT call for all slots; rows 2b and 2b + 1 are slot b's."""
        inputs = {
            name: self._stacked({slot: given[name] for slot, given in asked.items()})
            for name in next(iter(asked.values()))
        }
        outputs = self._models[LOCDIT_STEP](inputs)
        return {
            slot: {name: array[2 * slot : 2 * slot + 2] for name, array in outputs.items()} for slot in asked
        }

    def _patches(self, asked: Mapping[int, Inputs]) -> dict[int, dict[str, Array]]:
        """One encoder call for all slots: patches do not depend on each other, so they form one chunk."""
        encoder = self._models[FEAT_ENCODER]
        if items(FEAT_ENCODER, next(iter(asked.values()))) > 1:
            return {slot: encoder(inputs) for slot, inputs in asked.items()}
        patches = self._stacked({slot: inputs["patches"][0] for slot, inputs in asked.items()})
        embeddings = encoder({"patches": patches[np.newaxis]})["embeddings"]
        return {slot: {"embeddings": embeddings[:, slot : slot + 1]} for slot in asked}

    def _lm(self, model: str, asked: Mapping[int, Inputs]) -> dict[int, dict[str, Array]]:
        count = items(model, next(iter(asked.values())))
        ends = self._ends[model]
        positions = np.zeros(self._size, np.int32)
        crowded: dict[int, dict[str, Array]] = {}
        for slot in range(self._size):
            if slot in asked:
                positions[slot] = asked[slot]["position"][0]
                ends[slot] = int(positions[slot]) + count
                continue
            # Rows are also written for a slot without a call: after its own rows, where they do no harm.
            positions[slot] = min(ends[slot], self._length - count)
            if ends[slot] > positions[slot]:
                crowded[slot] = self.rows(slot, model, int(positions[slot]), self._length)
        written = self._written[model]
        written[:] = (max(now, int(start) + count) for now, start in zip(written, positions, strict=True))
        inputs = {
            "embeddings": self._stacked({slot: given["embeddings"] for slot, given in asked.items()}),
            "position": positions,
        }
        try:
            outputs = self._models[model](inputs, self._states[model])
        finally:
            for slot, rows in crowded.items():
                self._states[model].set_rows(slot * self._length + int(positions[slot]), rows)
        return {slot: {name: array[slot : slot + 1] for name, array in outputs.items()} for slot in asked}

    def _stacked(self, rows: Mapping[int, Array]) -> Array:
        """The slots' arrays (n, ...) as one (batch · n, ...), with zeros for slots without one."""
        some = next(iter(rows.values()))
        whole = np.zeros((self._size, *some.shape), some.dtype)
        for slot, array in rows.items():
            whole[slot] = array
        return whole.reshape(-1, *some.shape[1:])
