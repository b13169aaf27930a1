"""Several utterances spoken at the same time by step models that were converted for a batch.

Each utterance has a slot, and runs the ordinary loop over step models that look like its own. A call waits until every
running utterance has a call waiting; then calls of the same kind are joined into one.

    utterance 0 ─ locdit_step ┐                      ┌ rows of slot 0
    utterance 1 ─ locdit_step ┼► one call of the   ──┼ rows of slot 1
    utterance 2 ─ locdit_step ┘  whole batch         └ rows of slot 2

What a slot gets depends on its own rows only.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from voxcpm_constants.step_models import BASE_LM_STEP, FEAT_ENCODER, LOCDIT_STEP, RESIDUAL_LM_STEP
from voxcpm_runtime.backends.step_function import Array, StepState
from voxcpm_runtime.model.driver import Driver

_WITH_CACHE = (BASE_LM_STEP, RESIDUAL_LM_STEP)
# What runs first if the waiting calls differ: an utterance that is behind catches up, and from then on all make the
# same calls. Chunks of more than one item belong to prompts and texts.
_ORDER = (LOCDIT_STEP, FEAT_ENCODER, BASE_LM_STEP, RESIDUAL_LM_STEP)


def lone_slot(driver: Driver) -> Driver:
    """A driver for a single utterance, whatever batch the step models were converted for."""
    return driver if driver.sizes.batch == 1 else BatchSlots(driver, 1).driver(0)


@dataclass
class _Ask:
    """A call of one slot that waits for its result."""

    model: str
    inputs: Mapping[str, Array]
    result: dict[str, Array] | None = None
    error: BaseException | None = None
    answered: threading.Event = field(default_factory=threading.Event)
    """Set when there is a result or an error. One for each call: waking all slots for each takes longer than a GPU."""

    @property
    def items(self) -> int:
        """Number of embeddings or patches in the call; 1 for the DiT."""
        return 1 if self.model == LOCDIT_STEP else self.inputs[_CHUNKED[self.model]].shape[1]

    @property
    def kind(self) -> tuple[bool, int, int]:
        """A sort key: waiting calls of equal kind are joined into one, and the smallest kind runs first."""
        return (self.items == 1, _ORDER.index(self.model), -self.items)


_CHUNKED = {FEAT_ENCODER: "patches", BASE_LM_STEP: "embeddings", RESIDUAL_LM_STEP: "embeddings"}


class BatchSlots:
    """Step models shared by slots 0 to live - 1, all of which are running from the start."""

    def __init__(self, driver: Driver, live: int) -> None:
        self._driver = driver
        self._size = driver.sizes.batch
        self._length = driver.sizes.kv_length
        self._live = set(range(live))
        self._asks: dict[int, _Ask] = {}
        self._lock = threading.RLock()
        self._states = {name: driver.models[name].new_state() for name in _WITH_CACHE}
        self._ends = {name: [0] * self._size for name in _WITH_CACHE}
        """For each slot, the first cache position that has no row yet."""
        self._written = {name: [0] * self._size for name in _WITH_CACHE}
        """For each slot, the first cache position that is zero since the beginning: rows without use lie before it."""

    def driver(self, slot: int) -> Driver:
        """The driver of one slot."""
        shared = {name: _SlotModel(self, name, slot) for name in _ORDER}
        return self._driver.over({**self._driver.models, **shared})

    def leave(self, slot: int) -> None:
        """End a slot, so that the others no longer wait for its calls."""
        with self._lock:
            self._live.discard(slot)
            self._run_if_all_ask()

    def call(self, slot: int, model: str, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The slot's outputs of a call that it may share with others. Raises what the step model raises."""
        ask = _Ask(model, inputs)
        with self._lock:
            self._asks[slot] = ask
            self._run_if_all_ask()
        ask.answered.wait()
        if ask.error is not None:
            raise ask.error
        return ask.result or {}

    def rows(self, slot: int, model: str, start: int, stop: int) -> dict[str, Array]:
        """Copies of positions start..stop of a slot's KV caches, as in `StepState.rows`."""
        with self._lock:
            first = slot * self._length
            return self._states[model].rows(first + start, first + stop)

    def set_rows(self, slot: int, model: str, start: int, rows: Mapping[str, Array]) -> None:
        """Overwrite positions of a slot's KV caches from `start` on, as in `StepState.set_rows`."""
        with self._lock:
            self._states[model].set_rows(slot * self._length + start, rows)
            self._ends[model][slot] = start + max((array.shape[2] for array in rows.values()), default=0)
            self._written[model][slot] = max(self._written[model][slot], self._ends[model][slot])

    def clear(self, slot: int, model: str) -> None:
        """Fill a slot's KV caches with zeros, as far as they were written: masked positions must be finite, too."""
        with self._lock:
            written = self._written[model][slot]
            if written:
                empty = self._states[model].rows(0, 0)
                shapes = {
                    name: (*array.shape[:2], written, *array.shape[3:]) for name, array in empty.items()
                }
                self.set_rows(slot, model, 0, {name: np.zeros(s, np.float32) for name, s in shapes.items()})
            self._ends[model][slot] = self._written[model][slot] = 0

    def _run_if_all_ask(self) -> None:
        if not self._live or self._live != self._asks.keys():
            return
        kind = min(ask.kind for ask in self._asks.values())
        chosen = {slot: ask for slot, ask in self._asks.items() if ask.kind == kind}
        for slot in chosen:
            del self._asks[slot]
        model = next(iter(chosen.values())).model
        try:
            self._run(model, chosen)
        except BaseException as error:  # noqa: BLE001 - raised by `call`, in the threads that asked
            for ask in chosen.values():
                ask.error = error
        for ask in chosen.values():
            ask.answered.set()

    def _run(self, model: str, asks: Mapping[int, _Ask]) -> None:
        if model == LOCDIT_STEP:
            self._run_pairs(asks)
        elif model == FEAT_ENCODER:
            self._run_patches(asks)
        else:
            self._run_lm(model, asks)

    def _run_pairs(self, asks: Mapping[int, _Ask]) -> None:
        """One DiT call for all slots; rows 2b and 2b + 1 are slot b's."""
        inputs = {
            name: self._stacked({slot: ask.inputs[name] for slot, ask in asks.items()})
            for name in next(iter(asks.values())).inputs
        }
        outputs = self._driver.models[LOCDIT_STEP](inputs)
        for slot, ask in asks.items():
            ask.result = {name: array[2 * slot : 2 * slot + 2] for name, array in outputs.items()}

    def _run_patches(self, asks: Mapping[int, _Ask]) -> None:
        """One encoder call for all slots: patches do not depend on each other, so they form one chunk."""
        encoder = self._driver.models[FEAT_ENCODER]
        if next(iter(asks.values())).items > 1:
            for ask in asks.values():
                ask.result = encoder(ask.inputs)
            return
        patches = self._stacked({slot: ask.inputs["patches"][0] for slot, ask in asks.items()})
        embeddings = encoder({"patches": patches[np.newaxis]})["embeddings"]
        for slot, ask in asks.items():
            ask.result = {"embeddings": embeddings[:, slot : slot + 1]}

    def _run_lm(self, model: str, asks: Mapping[int, _Ask]) -> None:
        count = next(iter(asks.values())).items
        ends = self._ends[model]
        positions = np.zeros(self._size, np.int32)
        crowded: dict[int, dict[str, Array]] = {}
        for slot in range(self._size):
            if slot in asks:
                positions[slot] = asks[slot].inputs["position"][0]
                ends[slot] = int(positions[slot]) + count
                continue
            # Rows are also written for a slot without a call: after its own rows, where they do no harm.
            positions[slot] = min(ends[slot], self._length - count)
            if ends[slot] > positions[slot]:
                crowded[slot] = self.rows(slot, model, int(positions[slot]), self._length)
        written = self._written[model]
        written[:] = (max(now, int(start) + count) for now, start in zip(written, positions, strict=True))
        inputs = {
            "embeddings": self._stacked({slot: ask.inputs["embeddings"] for slot, ask in asks.items()}),
            "position": positions,
        }
        outputs = self._driver.models[model](inputs, self._states[model])
        for slot, rows in crowded.items():
            self._states[model].set_rows(slot * self._length + int(positions[slot]), rows)
        for slot, ask in asks.items():
            ask.result = {name: array[slot : slot + 1] for name, array in outputs.items()}

    def _stacked(self, rows: Mapping[int, Array]) -> Array:
        """The slots' arrays (n, ...) as one (batch · n, ...), with zeros for slots without one."""
        some = next(iter(rows.values()))
        whole = np.zeros((self._size, *some.shape), some.dtype)
        for slot, array in rows.items():
            whole[slot] = array
        return whole.reshape(-1, *some.shape[1:])


class _SlotModel:
    """A step model as one slot sees it."""

    def __init__(self, batch: BatchSlots, name: str, slot: int) -> None:
        self._batch = batch
        self._name = name
        self._slot = slot

    def new_state(self) -> _SlotModel:
        """The slot's part of the caches, cleared. A slot has one stream at a time."""
        self._batch.clear(self._slot, self._name)
        return self

    def rows(self, start: int, stop: int) -> dict[str, Array]:
        return self._batch.rows(self._slot, self._name, start, stop)

    def set_rows(self, start: int, rows: Mapping[str, Array]) -> None:
        self._batch.set_rows(self._slot, self._name, start, rows)

    def __call__(self, inputs: Mapping[str, Array], state: StepState | None = None) -> dict[str, Array]:  # noqa: ARG002 - the slot's
        return self._batch.call(self._slot, self._name, inputs)
