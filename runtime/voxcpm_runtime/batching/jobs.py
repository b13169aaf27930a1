"""Several jobs at the same time, each on a thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from typing import TypeVar

Result = TypeVar("Result")

current_job: ContextVar[int] = ContextVar("current_job")
"""Index of the job that the current thread works on."""


def run_jobs(jobs: Sequence[Callable[[], Result]], at_once: int) -> list[Result]:
    """The result of each job, in order. When all have ended, the error of the first job that failed is raised."""
    results = dict(completed_jobs(jobs, at_once))
    return [results[index].result() for index in range(len(jobs))]


def completed_jobs(
    jobs: Sequence[Callable[[], Result]], at_once: int
) -> Iterator[tuple[int, Future[Result]]]:
    """Each job's index and outcome when it ends. At most `at_once` jobs run at a time.

    Closing the iterator waits for the jobs that run, and starts no more.
    """
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for index in range(len(jobs)):
        waiting.put(index)
    ended: queue.SimpleQueue[tuple[int, Future[Result]]] = queue.SimpleQueue()
    closed = threading.Event()

    def work() -> None:
        try:
            while not closed.is_set():
                index = waiting.get_nowait()
                outcome: Future[Result] = Future()
                current_job.set(index)
                try:
                    outcome.set_result(jobs[index]())
                except BaseException as error:  # noqa: BLE001 - raised where the outcome is asked for
                    outcome.set_exception(error)
                ended.put((index, outcome))
        except queue.Empty:
            return

    with ThreadPoolExecutor(max(1, at_once), "utterance") as threads:
        for _ in range(min(at_once, len(jobs))):
            threads.submit(work)
        try:
            for _ in jobs:
                yield ended.get()
        finally:
            closed.set()
