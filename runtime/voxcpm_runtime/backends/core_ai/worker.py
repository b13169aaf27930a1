"""Core AI step models in a child process, which is replaced before Apple's runtime kills it.

On macOS 27 a Python process dies with SIGTRAP after 16,384 output arrays of Core AI, even if models are reloaded
(apple/coreai-torch 75). So the step models of a bundle run in a child process. After `PREPARED_AT` arrays the next one
loads them; after `MAX_OUTPUTS` it receives the states of all streams and takes over between two calls.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import count
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from voxcpm_constants.errors import BundleError, VoxCPMWarning, warn
from voxcpm_constants.manifest import Manifest
from voxcpm_constants.step_models import Precision
from voxcpm_runtime.backends.compilation import how_it_ended, python_child
from voxcpm_runtime.backends.core_ai.step_model import load_core_ai_step_model
from voxcpm_runtime.backends.step_function import Array, StepFunction, StepState

MAX_OUTPUTS, PREPARED_AT = 15_000, 12_000


class WorkerState:
    """The state of one stream, in the child process: a `StepState`."""

    def __init__(self, worker: CoreAIWorker, number: int) -> None:
        self.worker, self.number = worker, number

    def rows(self, start: int, stop: int) -> dict[str, Array]:
        """See `StepState`."""
        rows: dict[str, Array] = self.worker.request("rows", self.number, start, stop)
        return rows

    def set_rows(self, start: int, rows: Mapping[str, Array]) -> None:
        """See `StepState`."""
        self.worker.request("set_rows", self.number, start, dict(rows))


class WorkerStepModel:
    """A step model in the child process: a `StepFunction`."""

    releases_gil = True

    def __init__(self, worker: CoreAIWorker, name: str) -> None:
        self._worker, self._name = worker, name

    def new_state(self) -> WorkerState:
        """See `StepFunction`."""
        return self._worker.new_state(self._name)

    def __call__(self, inputs: Mapping[str, Array], state: StepState | None = None) -> dict[str, Array]:
        """Run one step. Raises what the step model raises, and BundleError if the child process ends."""
        if state is not None and not (isinstance(state, WorkerState) and state.worker is self._worker):
            raise ValueError(f"{self._name}: pass a state of this step model")
        number = None if state is None else state.number
        outputs: dict[str, Array] = self._worker.request("call", self._name, dict(inputs), number)
        return outputs


class CoreAIWorker:
    """The child process of a bundle, and its successors. Thread-safe; requests are serialized.

    Raises BundleError for a program that Core AI cannot load.
    """

    def __init__(
        self,
        folder: Path,
        precision: Precision,
        names: Sequence[str],
        *,
        max_outputs: int = MAX_OUTPUTS,
        prepared_at: int = PREPARED_AT,
    ) -> None:
        self._loaded = (folder, precision, tuple(names))
        self._max_outputs, self._prepared_at = max_outputs, prepared_at
        manifest = Manifest.read(folder)
        self._outputs = {
            name: sum(
                len(part.outputs) + (2 if manifest.form(part).state == "rows" else 0)
                for part in manifest.parts(name)
            )
            for name in names
        }
        self._numbers = count()
        self._states: dict[int, str] = {}
        self._freed: list[int] = []
        # Dedicated threads: Ctrl-C must not arrive between a request and its response, which the next request would
        # receive instead.
        self._requests = ThreadPoolExecutor(1, "core-ai-worker")
        self._starting = ThreadPoolExecutor(1, "core-ai-next-worker")
        self._child, self._returned = _Child(*self._loaded), 0
        self._next: Future[_Child] | None = None
        self.step_models: dict[str, StepFunction] = {name: WorkerStepModel(self, name) for name in names}

    def new_state(self, name: str) -> WorkerState:
        """A state of the step model in the child process, freed with the returned object."""
        number = next(self._numbers)
        self.request("new_state", name, number)
        state = WorkerState(self, number)
        # Finalizers run on any thread at any time, so this one only appends.
        weakref.finalize(state, self._freed.append, number)
        return state

    def request(self, what: str, *given: Any) -> Any:
        """The response of the child process. Raises the child's exception, and BundleError if it died.

        KeyboardInterrupt is raised after the response has arrived.
        """
        future = self._requests.submit(self._request, what, *given)
        try:
            return future.result()
        except BaseException:
            wait([future])
            raise

    def _request(self, what: str, *given: Any) -> Any:
        while self._freed:
            number = self._freed.pop()
            del self._states[number]
            self._child.request("drop", number)
        if what == "call":
            self._count(self._outputs[given[0]])
        answer = self._child.request(what, *given)
        if what == "new_state":
            name, number = given
            self._states[number] = name
        return answer

    def _count(self, outputs: int) -> None:
        if self._returned + outputs > self._max_outputs:
            # If it fails to start, the next call tries again.
            prepared, self._next = self._next, None
            following = (prepared or self._starting.submit(_Child, *self._loaded)).result()
            for number, name in self._states.items():
                following.request("new_state", name, number)
                following.request("set_rows", number, 0, self._child.request("rows", number, 0, None))
            self._child.close()
            self._child, self._returned = following, 0
        self._returned += outputs
        if self._returned >= self._prepared_at and self._next is None:
            self._next = self._starting.submit(_Child, *self._loaded)


class _Child:
    """A child process with the step models loaded. Raises BundleError for a program that cannot be loaded."""

    def __init__(self, folder: Path, precision: Precision, names: Sequence[str]) -> None:
        self._connection, theirs = Pipe()
        with theirs:
            given = [str(theirs.fileno()), str(folder.absolute()), precision, *names]
            self._process = python_child(
                ["-m", __name__, *given],
                stdin=subprocess.DEVNULL,
                # Core AI writes a line per function.
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                # Ctrl-C would reach every process of the terminal; the parent handles it.
                start_new_session=True,
            )
        self.close = weakref.finalize(self, _terminate, self._connection, self._process)
        for message in self.request("load"):
            warn(message)

    def request(self, *request: Any) -> Any:
        with contextlib.suppress(BrokenPipeError):
            self._connection.send(request)
        return self._answer()

    def _answer(self) -> Any:
        try:
            answer = self._connection.recv()
        except (EOFError, OSError):
            ended = how_it_ended(self._process.wait())
            raise BundleError(
                f"the Core AI process died ({ended}); open the bundle again, or use one for macos14"
            ) from None
        if isinstance(answer, Exception):
            raise answer
        return answer


def _terminate(connection: Connection, process: subprocess.Popen[bytes]) -> None:
    """Kill the child, even in the middle of a call."""
    connection.close()
    process.kill()
    process.wait()


def _main(descriptor: str, folder: str, precision: Precision, *names: str) -> None:
    """Serve requests until the connection is closed."""
    connection = Connection(int(descriptor))
    states: dict[int, Any] = {}
    models: dict[str, Any] = {}

    def load() -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            manifest = Manifest.read(Path(folder))
            for name in names:
                models[name] = load_core_ai_step_model(Path(folder), manifest, precision, name)
        return [str(warning.message) for warning in caught if issubclass(warning.category, VoxCPMWarning)]

    def new_state(name: str, number: int) -> None:
        states[number] = models[name].new_state()

    answers: dict[str, Callable[..., Any]] = {
        "load": load,
        "new_state": new_state,
        "call": lambda name, inputs, number: models[name](inputs, None if number is None else states[number]),
        "rows": lambda number, start, stop: states[number].rows(start, stop),
        "set_rows": lambda number, start, rows: states[number].set_rows(start, rows),
        "drop": lambda number: states.pop(number) and None,
    }
    while True:
        try:
            what, *given = connection.recv()
        except EOFError:
            return
        try:
            answer = answers[what](*given)
        except Exception as error:  # noqa: BLE001 - the parent raises it
            answer = error
        connection.send(answer)


if __name__ == "__main__":
    _main(*sys.argv[1:])  # type: ignore[arg-type]
    # Core AI's threads may crash an orderly exit.
    os._exit(0)
