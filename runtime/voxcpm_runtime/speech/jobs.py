"""Several utterances at once, each on a thread of its own and in a slot of the step models' batch."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from typing import TypeVar

from voxcpm_runtime.model.batch_slots import BatchSlots
from voxcpm_runtime.model.driver import Driver

Result = TypeVar("Result")

current_job: ContextVar[int] = ContextVar("current_job")
"""Which job, by its index, the present thread works on."""


def run_jobs(driver: Driver, jobs: Sequence[Callable[[Driver], Result]], at_once: int) -> list[Result]:
    """What each job returns, in order; the first error of any is raised when all have ended."""
    results = dict(completed_jobs(driver, jobs, at_once))
    return [results[index].result() for index in range(len(jobs))]


def completed_jobs(
    driver: Driver, jobs: Sequence[Callable[[Driver], Result]], at_once: int
) -> Iterator[tuple[int, Future[Result]]]:
    """Each job's index and outcome as it ends; up to `at_once` run at a time, as far as the step models have slots.

    A job is given the driver to speak with. Closing this waits for those that run, and begins no more.
    """
    at_once = min(at_once, driver.sizes.batch, len(jobs))
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for index in range(len(jobs)):
        waiting.put(index)
    ended: queue.SimpleQueue[tuple[int, Future[Result]]] = queue.SimpleQueue()
    closed = threading.Event()
    batch = BatchSlots(driver, at_once) if driver.sizes.batch > 1 and jobs else None

    def work(slot: int) -> None:
        own = driver if batch is None else batch.driver(slot)
        try:
            while not closed.is_set():
                index = waiting.get_nowait()
                outcome: Future[Result] = Future()
                current_job.set(index)
                try:
                    outcome.set_result(jobs[index](own))
                except BaseException as error:  # noqa: BLE001 - raised where the outcome is asked for
                    outcome.set_exception(error)
                ended.put((index, outcome))
        except queue.Empty:
            return
        finally:
            if batch is not None:
                batch.leave(slot)

    with ThreadPoolExecutor(max(1, at_once), "utterance") as threads:
        for slot in range(at_once):
            threads.submit(work, slot)
        try:
            for _ in jobs:
                yield ended.get()
        finally:
            closed.set()
