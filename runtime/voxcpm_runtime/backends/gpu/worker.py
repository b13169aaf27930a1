"""Worker threads for a GPU, one per session.

ONNX Runtime keeps captured calls for the thread that captured them. CUDA allows no allocation by any thread while one
captures, so calls that may allocate or capture run alone; all others run side by side.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from voxcpm_runtime.backends.gpu.device import Device

P = ParamSpec("P")
T = TypeVar("T")


class DeviceGate:
    """A readers-writer lock that prefers writers."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._sharing = self._asking_alone = 0
        self._alone = False

    @contextmanager
    def shared(self) -> Iterator[None]:
        """A context with shared access."""
        with self._changed:
            self._changed.wait_for(lambda: not self._alone and not self._asking_alone)
            self._sharing += 1
        try:
            yield
        finally:
            with self._changed:
                self._sharing -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """A context with exclusive access."""
        with self._changed:
            self._asking_alone += 1
            self._changed.wait_for(lambda: not self._alone and not self._sharing)
            self._asking_alone -= 1
            self._alone = True
        try:
            yield
        finally:
            with self._changed:
                self._alone = False
                self._changed.notify_all()


class DeviceWorker:
    """A thread for the calls of one session on a GPU."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.gate = _gate(device.memory, device.index)
        self._thread = ThreadPoolExecutor(1, str(device))

    def begin(self, call: Callable[[], T]) -> Future[T]:
        """Queue a call on the thread. It must not wait for another one."""
        return self._thread.submit(call)

    def run_alone(self, call: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """The result of a call on the thread, with exclusive access."""

        def called() -> T:
            with self.gate.alone():
                return call(*arguments, **named)

        return self._thread.submit(called).result()


@functools.cache
def _gate(memory: str, index: int) -> DeviceGate:  # noqa: ARG001 - one for each GPU
    return DeviceGate()
