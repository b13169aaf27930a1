"""`batch --ray`: lines are spoken by actors on all machines of a Ray cluster, and written where the command runs.

lines, taken one after the other ─► two at most for each actor ─► actor: files as bytes ─► written and recorded

A line whose actor is lost, with its machine or alone, is given to another one. Only the command writes files, so none
is written twice, and the output folder need not be shared.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from voxcpm_constants.errors import first_line
from voxcpm_runtime import CancelToken, DeviceError, InputError, VoxCPM, VoxCPMError
from voxcpm_runtime.commands.batch_execution import SpokenFile, Task, spoken_file
from voxcpm_runtime.commands.shared_arguments import Engine, loaded, opened
from voxcpm_runtime.commands.status_line import Notes
from voxcpm_server.cluster.cluster import check_address, check_device, cluster, everywhere, machine_name

_MAX_LOSSES = 3
"""Actors that a line may be lost with, and that a machine may lose."""
_LINES_OF_AN_ACTOR = 2
"""One that it speaks, and the next."""
_POLL_SECONDS = 0.5
_LOOK_SECONDS = 5.0
"""How often machines that are new are looked for."""

Warnings = list[str]


class Speaker:
    """The bundle on one machine of the cluster: an actor's work."""

    def open(self, name: str | None, engine: Engine, digest: str) -> str:
        """Load the bundle; returns why that cannot be done, in one line, or nothing.

        digest: of the bundle that the command was given.
        """
        try:
            bundle = opened(name, engine)
            if bundle.digest != digest:
                return (
                    f"{bundle.folder} is another bundle than the command's; give all machines the same files"
                )
            self._tts: VoxCPM = loaded(bundle, engine)
        except VoxCPMError as error:
            return str(error)
        return ""

    def speak(self, asked: Any, output: str) -> tuple[SpokenFile | VoxCPMError, Warnings]:
        """The file or error of a line, and its warnings. Raises DeviceError for a GPU that can no longer be used."""
        warned: Warnings = []
        result = spoken_file(self._tts, asked, output, warned.append)
        # Another machine can speak the line.
        if isinstance(result, DeviceError):
            raise result
        return result, warned


@dataclass
class _Actor:
    node: str
    """Id of its machine."""
    handle: Any
    opening: Any
    """Reference to the result of `open`; None when it is open."""
    running: dict[Any, Task] = field(default_factory=dict)
    """Its lines, by the reference to their results."""


def ray_executor(address: str, name: str | None, bundle: Any, engine: Engine) -> RayExecutor:
    """An executor on the cluster of an address. Raises InputError for an address or a device that cannot be meant."""
    check_address(address)
    check_device(engine.device)
    return RayExecutor(
        address, everywhere(name), bundle, replace(engine, precision=bundle.precision, verify=False)
    )


class RayExecutor:
    """Speaks lines on a cluster: see `voxcpm_runtime.commands.batch_execution.Executor`."""

    def __init__(self, address: str, name: str | None, bundle: Any, engine: Engine) -> None:
        self._address = address
        self._name = name
        self._bundle = bundle
        self._engine = engine

    def __call__(
        self, tasks: Iterator[Task], cancel: CancelToken, note: Notes, warn: Callable[[int, str], None]
    ) -> Iterator[tuple[Task, SpokenFile | VoxCPMError]]:
        """Each line with its file or error. Raises InputError if the cluster, or every machine of it, is unusable."""
        first = next(tasks, None)
        if first is None:
            return
        with cluster(self._address):
            run = _ClusterRun(self._name, self._bundle, self._engine, tasks, first)
            try:
                yield from run.results(cancel, note, warn)
            finally:
                run.close()


class _ClusterRun:
    """One run on a connected cluster."""

    def __init__(
        self, name: str | None, bundle: Any, engine: Engine, tasks: Iterator[Task], first: Task
    ) -> None:
        self._opening = (name, engine, bundle.digest)
        self._bundle = bundle
        self._engine = engine
        self._tasks = tasks
        self._waiting = deque([first])
        self._more = True
        self._losses: Counter[int] = Counter()
        self._crashes: Counter[str] = Counter()
        self._refused: dict[str, str] = {}
        self._actors: list[_Actor] = []
        self._failed: list[tuple[Task, VoxCPMError]] = []
        self._looked = float("-inf")

    def results(
        self, cancel: CancelToken, note: Notes, warn: Callable[[int, str], None]
    ) -> Iterator[tuple[Task, SpokenFile | VoxCPMError]]:
        """The results of all lines, until there are no more, or the token is cancelled."""
        spoken = 0
        while not cancel.cancelled:
            self._look_for_machines()
            self._give_work()
            yield from self._failed
            self._failed.clear()
            pending = [
                ref for actor in self._actors for ref in (*actor.running, actor.opening) if ref is not None
            ]
            if not self._more and not self._waiting and not any(actor.running for actor in self._actors):
                return
            machines = len({actor.node for actor in self._actors if actor.opening is None})
            note(f"{spoken} spoken on {machines} machine{'' if machines == 1 else 's'} …")
            if not pending:
                self._check_hope()
                time.sleep(_POLL_SECONDS)
                continue
            for ref in ray.wait(pending, timeout=_POLL_SECONDS)[0]:
                for task, result, warnings in self._ended(ref):
                    spoken += 1
                    for text in warnings:
                        warn(task.line.line, text)
                    yield task, result

    def close(self) -> None:
        """End all actors."""
        for actor in self._actors:
            ray.kill(actor.handle)
        self._actors.clear()

    def _look_for_machines(self) -> None:
        """Start an actor in each place that has none, on machines that have come as well."""
        if time.monotonic() - self._looked < _LOOK_SECONDS:
            return
        self._looked = time.monotonic()
        for node in ray.nodes():
            name, resources = node["NodeID"], node["Resources"]
            if not node["Alive"] or name in self._refused:
                continue
            places, needs = self._places(resources)
            there = sum(actor.node == name for actor in self._actors)
            for _ in range(places - there):
                self._actors.append(self._started(name, needs))

    def _places(self, resources: dict[str, float]) -> tuple[int, dict[str, float]]:
        """How many actors a machine has, and what each of them needs."""
        processors = int(resources.get("CPU", 0))
        if self._engine.device.startswith("cuda") or self._engine.device.startswith("tensorrt"):
            gpus = int(resources.get("GPU", 0))
            return gpus, {"num_gpus": 1, "num_cpus": min(1, processors // max(gpus, 1))}
        each = self._engine.threads or processors
        return (processors // each if each else 0), {"num_cpus": each}

    def _started(self, node: str, needs: dict[str, float]) -> _Actor:
        there = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
        made = ray.remote(Speaker).options(scheduling_strategy=there, max_restarts=0, **needs).remote()
        return _Actor(node, made, made.open.remote(*self._opening))

    def _give_work(self) -> None:
        for ahead in range(_LINES_OF_AN_ACTOR):
            for actor in self._actors:
                if actor.opening is None and len(actor.running) == ahead and (line := self._next_line()):
                    task, arguments = line
                    actor.running[actor.handle.speak.remote(arguments, task.line.output)] = task

    def _next_line(self) -> tuple[Task, Any] | None:
        """The next line with its arguments; lines that were lost come first."""
        while True:
            if not self._waiting and self._more:
                task = next(self._tasks, None)
                self._more = task is not None
                self._waiting.extend([] if task is None else [task])
            if not self._waiting:
                return None
            task = self._waiting.popleft()
            try:
                return task, task.self_contained(self._bundle)
            except VoxCPMError as error:
                self._failed.append((task, error))

    def _ended(self, ref: Any) -> Iterator[tuple[Task, SpokenFile | VoxCPMError, Warnings]]:
        actor = next((a for a in self._actors if ref is a.opening or ref in a.running), None)
        if actor is None:
            return
        try:
            result = ray.get(ref)
        except (RayError, DeviceError) as error:
            self._lost(actor, first_line(error))
            return
        if ref is not actor.opening:
            yield actor.running.pop(ref), *result
            return
        actor.opening = None
        if result:
            self._refuse(actor.node, result)

    def _lost(self, actor: _Actor, reason: str) -> None:
        """Give an actor's lines to others. A line that loses every actor is not tried forever."""
        self._drop(actor)
        self._crashes[actor.node] += 1
        if self._crashes[actor.node] >= _MAX_LOSSES:
            self._refuse(actor.node, reason)
        # It speaks the oldest line; what waits behind that is not to blame.
        oldest = next(iter(actor.running.values()), None)
        for task in reversed(actor.running.values()):
            self._again(task, reason if task is oldest else None)
        # Its machine may be there still.
        self._looked = float("-inf")

    def _again(self, task: Task, reason: str | None) -> None:
        """Let another actor speak a line. reason: why a process ended while it spoke this; None if it did not."""
        self._losses[task.line.line] += reason is not None
        if self._losses[task.line.line] < _MAX_LOSSES:
            self._waiting.appendleft(task)
        else:
            lost = InputError(f"{_MAX_LOSSES} processes ended that were to speak it, the last one: {reason}")
            self._failed.append((task, lost))

    def _refuse(self, node: str, reason: str) -> None:
        """Leave a machine out from now on."""
        self._refused[node] = f"{machine_name(node)}: {reason}"
        for actor in [actor for actor in self._actors if actor.node == node]:
            self._drop(actor)
            for task in reversed(actor.running.values()):
                self._again(task, None)
        self._check_hope()

    def _check_hope(self) -> None:
        """Raises InputError if every machine was left out."""
        if self._refused and not self._actors:
            raise InputError(f"no machine of the cluster can speak; {next(iter(self._refused.values()))}")

    def _drop(self, actor: _Actor) -> None:
        self._actors.remove(actor)
        ray.kill(actor.handle)
