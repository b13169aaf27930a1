"""When jobs are tried again whose bundle or device cannot be used: after pauses that double."""

from __future__ import annotations

import time
from collections.abc import Callable

FIRST_SECONDS = 5.0
MAX_SECONDS = 600.0


class Pauses:
    """The pauses of jobs by name. clock: seconds that only grow."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._of: dict[str, tuple[float, float]] = {}
        """When each job is tried again, and the pause before that in seconds."""

    def lengthen(self, id_: str) -> None:
        """Have a job wait from now on: for the first pause, or for twice its latest one."""
        _, latest = self._of.get(id_, (0.0, FIRST_SECONDS / 2))
        pause = min(latest * 2, MAX_SECONDS)
        self._of[id_] = (self._clock() + pause, pause)

    def end(self, id_: str) -> None:
        """Forget a job's pauses, if it has any."""
        self._of.pop(id_, None)

    @property
    def waiting(self) -> list[str]:
        """The names of the jobs whose pause lasts."""
        now = self._clock()
        return [id_ for id_, (again, _) in self._of.items() if again > now]

    @property
    def shortest(self) -> float:
        """Seconds until the first of them is tried again; those of the longest pause if none waits."""
        now = self._clock()
        return min((again - now for again, _ in self._of.values() if again > now), default=MAX_SECONDS)
