"""Several utterances spoken at the same time by step models that were converted for a batch.

Each utterance has a slot, and runs the ordinary loop over step models that look like its own. A call waits until every
running utterance has a call waiting; then calls of the same kind are joined into one.

    utterance 0 ─ locdit_step ┐                      ┌ rows of slot 0
    utterance 1 ─ locdit_step ┼► one call of the   ──┼ rows of slot 1
    utterance 2 ─ locdit_step ┘  whole batch         └ rows of slot 2

What a slot gets depends on its own rows only. So utterances may take slots and leave them at any time: one that begins
is prefilled by the next call, and from then on all make the same calls.
"""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from voxcpm_constants.step_models import BASE_LM_STEP, FEAT_ENCODER, LOCDIT_STEP, RESIDUAL_LM_STEP
from voxcpm_runtime.backends.fair_lock import FairLock
from voxcpm_runtime.backends.step_function import Array, StepState
from voxcpm_runtime.batching.shared_calls import SharedCalls, items
from voxcpm_runtime.model.driver import Driver, Patch

PATIENCE_SECONDS = 0.02
"""How long the others wait for an utterance whose reader has a patch in hand and does not ask for the next one.

Readers mostly come back within a millisecond, and then all go on together. Without an end of it, one that plays what
it reads would slow all others down to its own pace.
"""
# What runs first if the waiting calls differ: an utterance that is behind catches up, and from then on all make the
# same calls. Chunks of more than one item belong to prompts and texts.
_ORDER = (LOCDIT_STEP, FEAT_ENCODER, BASE_LM_STEP, RESIDUAL_LM_STEP)

Item = TypeVar("Item")


def lone_slot(driver: Driver) -> Driver:
    """A driver for a single utterance, from one whose step models were converted for a batch."""
    return BatchSlots(driver, 1).take(_go_on).driver


def _go_on() -> None:
    """The check of an utterance that nothing ends."""


class Slot:
    """The place of one utterance, from `BatchSlots.take` on: the driver that it is spoken with.

    The others wait for its calls from the first one on, until it has computed its last item, or its reader is late.
    """

    def __init__(self, batch: BatchSlots, index: int, check: Callable[[], None]) -> None:
        self.index = index
        self.check = check
        """Raises what ends the utterance."""
        self.driver = batch.driver(self)
        self.left = False
        """Whether another utterance may have the slot by now."""
        self.awaited = False
        """Whether it has made a call, and others are to follow."""
        self._leaving: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._leaving.put(None)
        self._rested = batch.look
        self._computing = False
        self._with_reader_since: float | None = None
        self._reader_was_late = False

    def leave(self) -> bool:
        """End the utterance: whether it had not ended before."""
        try:
            self._leaving.get_nowait()
        except queue.Empty:
            return False
        self.left, self.awaited = True, False
        return True

    @property
    def ended(self) -> bool:
        """Whether the utterance was ended from outside."""
        try:
            self.check()
        except Exception:  # noqa: BLE001 - whatever ends it
            return True
        return False

    def computed(self, items: Iterator[Item]) -> Generator[Item, None, None]:
        """The items, which are computed with this slot's driver, on whichever thread asks for them."""
        try:
            while True:
                self._computing = True
                try:
                    item = next(items)
                except StopIteration:
                    return
                finally:
                    self._computing = False
                yield item
        finally:
            self.awaited = False
            self._rested()

    def handed_over(self, items: Generator[Item, None, None]) -> Generator[Item, None, None]:
        """The items, which a reader takes at its own pace."""
        with contextlib.closing(items):
            for item in items:
                self._with_reader_since = since = time.perf_counter()
                yield item
                self._reader_was_late = time.perf_counter() - since > PATIENCE_SECONDS
                self._with_reader_since = None

    @property
    def comes(self) -> bool:
        """Whether the others are to wait for a call of this slot."""
        since = self._with_reader_since
        if not self.awaited or self._computing or since is None:
            return self.awaited
        return not self._reader_was_late and time.perf_counter() - since <= PATIENCE_SECONDS


@dataclass
class _Ask:
    """A call of one slot that waits for its result."""

    model: str
    inputs: Mapping[str, Array]
    result: dict[str, Array] | None = None
    error: Exception | None = None
    answered: bool = False
    withdrawn: bool = False
    look: queue.SimpleQueue[None] = field(default_factory=queue.SimpleQueue)
    """Gets an item when the call is answered, or may have to be made. One for each call: waking all slots for each
    takes longer than a GPU."""

    @property
    def kind(self) -> tuple[bool, int, int]:
        """A sort key: waiting calls of equal kind are joined into one, and the smallest kind runs first."""
        count = items(self.model, self.inputs)
        return (count == 1, _ORDER.index(self.model), -count)


class BatchSlots:
    """Step models shared by slots, which utterances of any threads take and leave at any time.

    slots: at most as many as the step models were converted for, which is the default. Those that were converted for a
    single utterance are not shared: then there is one slot, and its driver is the given one.

    A generator that nobody closed may be closed by the garbage collector, in the middle of anything that a thread does.
    So nothing that ends an utterance takes a lock.
    """

    def __init__(self, driver: Driver, slots: int | None = None) -> None:
        self._driver = driver
        self._size = driver.sizes.batch
        self.count = min(self._size, slots or self._size)
        """Number of slots."""
        self._free: queue.SimpleQueue[int] = queue.SimpleQueue()
        for index in range(self.count):
            self._free.put(index)
        # Held while a call runs, so that one that has come meanwhile is known before the next call.
        self._lock = FairLock()
        self._taken: list[Slot] = []
        self._asks: dict[Slot, _Ask] = {}
        self._calls = SharedCalls(driver)

    @contextlib.contextmanager
    def taken(self, check: Callable[[], None]) -> Iterator[Slot]:
        """A slot for one utterance. Arguments and errors: `take`."""
        slot = self.take(check)
        try:
            yield slot
        finally:
            self._leave(slot)
            self.look()

    def take(self, check: Callable[[], None]) -> Slot:
        """A slot for one utterance; waits until one is free.

        check: called while the slot waits for anything, and ends the waiting by what it raises.
        """
        index: int | None = None
        while index is None:
            with contextlib.suppress(queue.Empty):
                index = self._free.get(timeout=PATIENCE_SECONDS)
            if index is None:
                check()
                for other in self._taken:
                    # Its reader need not have noticed.
                    if other.ended:
                        self._leave(other)
        try:
            with self._lock.held(check):
                slot = Slot(self, index, check)
                self._taken = [*(other for other in self._taken if not other.left), slot]
        except BaseException:
            self._free.put(index)
            raise
        return slot

    def _leave(self, slot: Slot) -> None:
        if slot.leave():
            self._free.put(slot.index)

    def look(self) -> None:
        """Have one of the waiting threads look whether there is somebody left to wait for."""
        for ask in list(self._asks.values())[:1]:
            ask.look.put(None)

    def driver(self, slot: Slot) -> Driver:
        """The driver of one slot."""
        if self._size == 1:
            return SlotDriver(self._driver, slot)
        shared = {name: _SlotModel(self, name, slot) for name in _ORDER}
        return SlotDriver(self._driver.over({**self._driver.models, **shared}), slot)

    def call(self, slot: Slot, model: str, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The slot's outputs of a call that it may share with others.

        Raises what the step model raises, and what the slot's check raises while it waits.
        """
        ask = _Ask(model, inputs)
        try:
            with self._held(slot):
                slot.awaited = True
                self._asks[slot] = ask
                self._run_if_all_ask()
            while not ask.answered:
                with contextlib.suppress(queue.Empty):
                    ask.look.get(timeout=PATIENCE_SECONDS)
                if not ask.answered:
                    slot.check()
                    with self._lock.held_if_free() as held:
                        if held:
                            self._run_if_all_ask()
        except BaseException:
            ask.withdrawn = True
            self.look()
            raise
        if ask.error is not None:
            raise ask.error
        return ask.result or {}

    def rows(self, slot: Slot, model: str, start: int, stop: int) -> dict[str, Array]:
        """Copies of positions start..stop of a slot's KV caches, as in `StepState.rows`."""
        with self._held(slot):
            return self._calls.rows(slot.index, model, start, stop)

    def set_rows(self, slot: Slot, model: str, start: int, rows: Mapping[str, Array]) -> None:
        """Overwrite positions of a slot's KV caches from `start` on, as in `StepState.set_rows`."""
        with self._held(slot):
            self._calls.set_rows(slot.index, model, start, rows)

    def clear(self, slot: Slot, model: str) -> None:
        """Fill a slot's KV caches with zeros, as far as they were written: masked positions must be finite, too."""
        with self._held(slot):
            self._calls.clear(slot.index, model)

    @contextlib.contextmanager
    def _held(self, slot: Slot) -> Iterator[None]:
        with self._lock.held(slot.check):
            slot.check()
            if slot.left:
                raise RuntimeError("this utterance has ended, and its slot was left")
            yield

    def _run_if_all_ask(self) -> None:
        for slot, ask in list(self._asks.items()):
            if ask.withdrawn or slot.left:
                del self._asks[slot]
        if not self._asks or any(slot.comes for slot in self._taken if slot not in self._asks):
            return
        kind = min(ask.kind for ask in self._asks.values())
        chosen = {slot: ask for slot, ask in self._asks.items() if ask.kind == kind}
        model = next(iter(chosen.values())).model
        together = {slot.index: ask for slot, ask in chosen.items()}
        try:
            self._answer(model, together)
        except Exception as error:  # noqa: BLE001 - raised by `call`, in the threads that asked
            # One of them may be the cause, and the others are not to suffer from it.
            for index, ask in together.items():
                ask.error = error if len(together) == 1 else self._error_alone(model, index, ask)
        # After Ctrl-C in this thread the calls still wait: its own is withdrawn, and another thread makes the others.
        for slot, ask in chosen.items():
            del self._asks[slot]
            ask.answered = True
            ask.look.put(None)

    def _error_alone(self, model: str, index: int, ask: _Ask) -> Exception | None:
        try:
            self._answer(model, {index: ask})
        except Exception as error:  # noqa: BLE001 - raised by `call`, in the thread that asked
            return error
        return None

    def _answer(self, model: str, asks: Mapping[int, _Ask]) -> None:
        outputs = self._calls.run(model, {index: ask.inputs for index, ask in asks.items()})
        for index, ask in asks.items():
            ask.result = outputs[index]


class SlotDriver(Driver):
    """A driver whose slot knows when patches are being computed, on whichever thread asks for them."""

    def __init__(self, driver: Driver, slot: Slot) -> None:
        self.__dict__.update(vars(driver))
        self._slot = slot

    def generate_patches(self, *given: Any, **named: Any) -> Generator[Patch, None, None]:
        """See `Driver.generate_patches`."""
        return self._slot.computed(super().generate_patches(*given, **named))


class _SlotModel:
    """A step model as one slot sees it."""

    def __init__(self, batch: BatchSlots, name: str, slot: Slot) -> None:
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
