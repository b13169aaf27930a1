"""`batch --ray`: each line is a task on a Ray cluster, or `--together` of them; the command writes their files.

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
from voxcpm_runtime.commands.batch_lines import BatchLine, SpokenFile, spoken_files
from voxcpm_runtime.commands.shared_arguments import Engine, load_voxcpm
from voxcpm_server.cluster.cluster import check_cluster, cluster, open_same_bundle, portable_name

_RETRIES = 2  # of a task whose process died
_TASKS_PER_PROCESS = 2  # tasks submitted per process: the current one and the next
_POLL_SECONDS = 0.5
Warn = Callable[[int, str], None]


@functools.lru_cache(1)
def _tts(name: str | None, engine: str, digest: str) -> VoxCPM:
    """The bundle, loaded once per process. engine: an `Engine` as JSON, to be hashable."""
    chosen = Engine(**json.loads(engine))
    return load_voxcpm(open_same_bundle(name, chosen, digest), chosen)


def speak(
    bundle: tuple[str | None, str, str], lines: list[BatchLine], together: int
) -> tuple[dict[int, SpokenFile | VoxCPMError], list[tuple[int, str]]] | str:
    """What the files of lines hold, or their errors, by number, and warnings with the number of their line.

    A message if this machine cannot load the bundle.

    bundle: arguments of `_tts`.
    """
    try:
        tts = _tts(*bundle)
    except VoxCPMError as error:
        return f"{ray.util.get_node_ip_address()}: {error}"
    warned: list[tuple[int, str]] = []
    spoken = spoken_files(tts, lines, lambda *warning: warned.append(warning), together)
    return {line.number: found for line, found in spoken}, warned


def ray_executor(address: str, name: str | None, bundle: Any, engine: Engine, together: int) -> RayExecutor:
    """An executor for a cluster address. Raises the same as `check_cluster`."""
    check_cluster(address)
    engine = replace(engine, precision=bundle.precision, verify=False)
    return RayExecutor(address, name, bundle, engine, together)


class RayExecutor:
    """Speaks lines on a cluster: see `voxcpm_runtime.commands.batch.Executor`."""

    def __init__(
        self, address: str, name: str | None, bundle: Any, engine: Engine, together: int = 1
    ) -> None:
        self._address, self._together = address, together
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
        running: dict[Any, dict[int, BatchLine]] = {}
        done, more = 0, True
        remote = ray.remote(max_retries=_RETRIES)(speak)
        while not cancel.cancelled and (more or running):
            processes, needs = self._processes()
            while more and len(running) < _TASKS_PER_PROCESS * processes:
                group = {line.number: line for line in itertools.islice(lines, self._together)}
                more, sent = bool(group), list[BatchLine]()
                for line in group.values():
                    try:
                        sent.append(line.self_contained(self._bundle))
                    except VoxCPMError as error:  # noqa: PERF203 - of each line
                        yield line, error
                if sent:
                    submitted = remote.options(**needs).remote(self._named, sent, self._together)
                    running[submitted] = {line.number: group[line.number] for line in sent}
            note(f"{done} spoken …")
            if not running:
                # Machines may still join the cluster.
                time.sleep(_POLL_SECONDS if more else 0)
                continue
            for ref in ray.wait(list(running), timeout=_POLL_SECONDS)[0]:
                group = running.pop(ref)
                try:
                    result = ray.get(ref)
                except RayError as error:
                    failed = InputError(f"all processes failed; last error: {first_line(error)}")
                    result = dict.fromkeys(group, failed), []
                if isinstance(result, str):
                    raise InputError(result)
                done += len(group)
                for number, text in result[1]:
                    warn(number, text)
                for number, found in result[0].items():
                    yield group[number], found

    def _processes(self) -> tuple[int, dict[str, float]]:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        cpus = [int(count) for node in nodes if (count := node.get("CPU", 0)) >= 1]
        each = self._engine.threads or min(cpus, default=1)
        return sum(count // each for count in cpus), {"num_cpus": float(each)}
