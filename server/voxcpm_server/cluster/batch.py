"""`batch --ray`: each line is a task on a Ray cluster; its file is written where the command runs.

Ray retries a task, possibly on another machine, if its process or machine dies. Only the command writes files, so none
is written twice and the output folder need not be shared.
"""

from __future__ import annotations

import functools
import itertools
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from typing import Any

import ray
from ray.exceptions import RayError

from voxcpm_constants.errors import first_line
from voxcpm_constants.progress_lines import Notes
from voxcpm_runtime import CancelToken, InputError, VoxCPM, VoxCPMError
from voxcpm_runtime.commands.batch_lines import BatchLine, SpokenFile, spoken_file
from voxcpm_runtime.commands.shared_arguments import Engine, load_voxcpm
from voxcpm_server.cluster.cluster import check_cluster, cluster, open_same_bundle, portable_name

_RETRIES = 2  # of a line whose process died
_TASKS_PER_PROCESS = 2  # lines submitted per process: the current one and the next
_POLL_SECONDS = 0.5
Warn = Callable[[int, str], None]


@functools.lru_cache(1)
def _tts(name: str | None, engine: str, digest: str) -> VoxCPM:
    """The bundle, loaded once per process. engine: an `Engine` as JSON, to be hashable."""
    chosen = Engine(**json.loads(engine))
    return load_voxcpm(open_same_bundle(name, chosen, digest), chosen)


def speak(bundle: tuple[str | None, str, str], request: Any, timestamps: str) -> tuple[Any, list[str]] | str:
    """The speech or error of a line, and its warnings; or a message if this machine cannot load the bundle.

    bundle: arguments of `_tts`.
    """
    try:
        tts = _tts(*bundle)
    except VoxCPMError as error:
        return f"{ray.util.get_node_ip_address()}: {error}"
    warned: list[str] = []
    return spoken_file(tts, request, warned.append, timestamps), warned


def ray_executor(address: str, name: str | None, bundle: Any, engine: Engine) -> RayExecutor:
    """An executor for a cluster address. Raises the same as `check_cluster`."""
    check_cluster(address)
    return RayExecutor(address, name, bundle, replace(engine, precision=bundle.precision, verify=False))


class RayExecutor:
    """Speaks lines on a cluster: see `voxcpm_runtime.commands.batch.Executor`."""

    def __init__(self, address: str, name: str | None, bundle: Any, engine: Engine) -> None:
        self._address = address
        self._bundle = bundle
        self._engine = engine
        self._named = (portable_name(name), json.dumps(asdict(engine)), bundle.digest)

    def __call__(
        self, lines: Iterator[BatchLine], cancel: CancelToken, note: Notes, warn: Warn
    ) -> Iterator[tuple[BatchLine, SpokenFile | VoxCPMError]]:
        """Each line with its file or error. Raises InputError if the cluster or one of its machines is unusable."""
        if (first := next(lines, None)) is not None:
            with cluster(self._address):
                yield from self._results(itertools.chain([first], lines), cancel, note, warn)

    def _results(
        self, lines: Iterator[BatchLine], cancel: CancelToken, note: Notes, warn: Warn
    ) -> Iterator[tuple[BatchLine, SpokenFile | VoxCPMError]]:
        running: dict[Any, BatchLine] = {}
        done, more = 0, True
        remote = ray.remote(max_retries=_RETRIES)(speak)
        while not cancel.cancelled and (more or running):
            processes, needs = self._processes()
            while more and len(running) < _TASKS_PER_PROCESS * processes:
                if (line := next(lines, None)) is None:
                    more = False
                    break
                try:
                    request = line.self_contained(self._bundle)
                except VoxCPMError as error:
                    yield line, error
                else:
                    submitted = remote.options(**needs).remote(self._named, request, line.timestamps)
                    running[submitted] = line
            note(f"{done} spoken …")
            if not running:
                # Machines may still join the cluster.
                time.sleep(_POLL_SECONDS if more else 0)
                continue
            for ref in ray.wait(list(running), timeout=_POLL_SECONDS)[0]:
                line = running.pop(ref)
                try:
                    result = ray.get(ref)
                except RayError as error:
                    result = InputError(f"all processes failed; last error: {first_line(error)}"), []
                if isinstance(result, str):
                    raise InputError(result)
                done += 1
                for text in result[1]:
                    warn(line.number, text)
                yield line, result[0]

    def _processes(self) -> tuple[int, dict[str, float]]:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        cpus = [int(count) for node in nodes if (count := node.get("CPU", 0)) >= 1]
        each = self._engine.threads or min(cpus, default=1)
        return sum(count // each for count in cpus), {"num_cpus": float(each)}
