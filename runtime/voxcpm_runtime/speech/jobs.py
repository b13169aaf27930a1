"""Several utterances at the same time, each on its own thread and in its own slot of the step models' batch."""

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
"""Index of the job that the current thread works on."""


def run_jobs(driver: Driver, jobs: Sequence[Callable[[Driver], Result]], at_once: int) -> list[Result]:
    """The result of each job, in order. When all have ended, the error of the first job that failed is raised."""
    results = dict(completed_jobs(driver, jobs, at_once))
    return [results[index].result() for index in range(len(jobs))]


def completed_jobs(
    driver: Driver, jobs: Sequence[Callable[[Driver], Result]], at_once: int
) -> Iterator[tuple[int, Future[Result]]]:
    """Each job's index and outcome when it ends. At most `at_once` jobs run at a time, and one for each slot.

    A job gets the driver to speak with. Closing the iterator waits for the jobs that run, and starts no more.
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
