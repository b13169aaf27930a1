"""A process that runs cases one after another, is watched meanwhile, and is started again when a case ends it.

Run as a program, this module is that process. Each case ends as one word, and perhaps a line that explains it.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import select
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from voxcpm_constants.errors import VoxCPMError

HANG_SECONDS = 20.0
"""CPU time, and a third of the wall time, after which a case counts as hanging."""
MEMORY_ABOVE = 2 << 30
"""Address space that a case may add to the process."""

REFUSED, SYSTEM, SAME, OTHER = "refused", "an error of the system", "same samples", "other samples"
TRACEBACK, CRASH, HANG, MEMORY, LINES = "traceback", "crash", "hang", "memory", "not one line"
FAILURES = frozenset({OTHER, SYSTEM, TRACEBACK, CRASH, HANG, MEMORY, LINES})


class Ended(NamedTuple):
    """The outcome of a case."""

    outcome: str
    detail: str = ""


def child_environment(**more):
    """The environment of a process that imports this package, with one thread per library."""
    path = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    threads = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), **threads, **more}


class Watched:
    """The process, from this one's side.

    maker: `module:function`, called in it with `given`; returns what runs a case, any JSON document.
    library: preloaded. hang_seconds, memory: see HANG_SECONDS and MEMORY_ABOVE; 0 for no limit of memory.
    """

    def __init__(self, maker, *, library=None, hang_seconds=HANG_SECONDS, memory=MEMORY_ABOVE, **given):
        self._arguments = [maker, json.dumps(given, default=str), str(memory)]
        self._hang_seconds = hang_seconds
        preloaded = {"LD_PRELOAD": str(library)} if library else {}
        self._environment = child_environment(TOKENIZERS_PARALLELISM="false", **preloaded)
        self._process: subprocess.Popen[bytes] | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(30)
            self._process.kill()
            self._reap()
        self._errors.close()

    def run(self, case):
        """Run one case."""
        process = self._process or self._start()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(case, default=str).encode() + b"\n")
            process.stdin.flush()
            answer = self._answer(process, self._hang_seconds)
        except BrokenPipeError:
            answer = b""
        if answer is None:
            process.kill()
            self._reap()
            return Ended(HANG)
        if not answer:
            code = self._reap()
            return Ended(CRASH, f"exit code {code}: {self._said()[-300:]}")
        return Ended(*json.loads(answer))

    def check(self, cases):
        """Run cases, print their outcomes, and fail with the first ones that went wrong."""
        outcomes, wrong = Counter[str](), []
        for case in cases:
            ended = self.run(case)
            outcomes[ended.outcome] += 1
            if ended.outcome in FAILURES:
                wrong.append(f"{ended.outcome}: {case}: {ended.detail}")
        print(dict(outcomes))
        assert not wrong, f"{len(wrong)} cases failed:\n" + "\n".join(wrong[:40])

    def _start(self):
        self._errors.seek(0)
        self._errors.truncate()
        self._process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-m", "robustness.watched", *self._arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, env=self._environment,
        )  # fmt: skip
        if not self._answer(self._process, None):
            raise RuntimeError(self._said()[-3000:])
        return self._process

    def _said(self):
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")

    @staticmethod
    def _answer(process, hang_seconds):
        assert process.stdout is not None
        began, before = time.monotonic(), _processor_seconds(process.pid)
        while not select.select([process.stdout], [], [], 0.5)[0]:
            used = _processor_seconds(process.pid) - before
            if hang_seconds and (used > hang_seconds or time.monotonic() - began > 3 * hang_seconds):
                return None
        return process.stdout.readline()

    def _reap(self):
        assert self._process is not None
        process, self._process = self._process, None
        code = process.wait()
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()
        return code


def _processor_seconds(pid):
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def ending(run):
    """The outcome of a case, by its result or exception."""
    try:
        return run()
    except VoxCPMError as error:
        return Ended(LINES if len(str(error).splitlines()) != 1 else REFUSED, str(error)[:300])
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - the case's outcome
        if isinstance(error, OSError):
            return Ended(SYSTEM, str(error)[:300])
        is_memory = isinstance(error, MemoryError) or any(
            words in str(error) for words in ("bad_alloc", "Failed to allocate")
        )
        places = [f"{Path(f.filename).name}:{f.lineno}" for f in traceback.extract_tb(error.__traceback__)]
        return Ended(
            MEMORY if is_memory else TRACEBACK,
            f"{type(error).__name__}: {str(error)[:160]!r} at {' '.join(places[-5:])}",
        )


def _serve(maker, given, memory):

    warnings.simplefilter("ignore")
    # A case's output is not a response.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    module, _, name = maker.partition(":")
    run = getattr(importlib.import_module(module), name)(**json.loads(given))
    if int(memory):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * os.sysconf("SC_PAGE_SIZE") + int(memory)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        case = json.loads(line)
        print(json.dumps(ending(lambda case=case: run(case))), file=answers, flush=True)


if __name__ == "__main__":
    _serve(*sys.argv[1:])
