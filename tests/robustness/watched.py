"""Cases that run one after another in one watched process, which is started again when a case ends it.

Run as a program, this module is that process. Each case ends as one word, and perhaps a line that explains it.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

HANG_SECONDS = 20.0
"""Processor time, and a third of the time on the clock, after which a case hangs: other processes run beside it."""
MEMORY_ABOVE = 2 << 30
"""Address space that a case may take beyond what the process has when it begins."""

REFUSED, SYSTEM, SAME, OTHER = "refused", "an error of the system", "same samples", "other samples"
TRACEBACK, CRASH, HANG, MEMORY, LINES = "traceback", "crash", "hang", "memory", "not one line"
FAILURES = frozenset({OTHER, SYSTEM, TRACEBACK, CRASH, HANG, MEMORY, LINES})


class Ended(NamedTuple):
    """How a case ended."""

    outcome: str
    detail: str = ""


class Watched:
    """The process, from this one's side. maker: `module:function`, called in it with `given`."""

    def __init__(self, maker: str, **given: object) -> None:
        self._arguments = [maker, json.dumps(given, default=str)]
        self._process: subprocess.Popen[bytes] | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115

    def run(self, case: object) -> Ended:
        """Run one case: any JSON document."""
        process = self._process or self._start()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(case).encode() + b"\n")
            process.stdin.flush()
            answer = self._answer(process, hangs=True)
        except BrokenPipeError:
            answer = b""
        if answer is None:
            process.kill()
            self._ended()
            return Ended(HANG)
        if not answer:
            code = self._ended()
            self._errors.seek(0)
            return Ended(CRASH, f"exit code {code}: {self._errors.read()[-300:].decode(errors='replace')}")
        return Ended(*json.loads(answer))

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(30)
            self._process.kill()
            self._ended()
        self._errors.close()

    def _start(self) -> subprocess.Popen[bytes]:
        path = os.pathsep.join(
            [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
        )
        threads = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        self._errors.seek(0)
        self._errors.truncate()
        process = self._process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-m", "robustness.watched", *self._arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
            env={**os.environ, **threads, "PYTHONPATH": path},
        )  # fmt: skip
        ready = self._answer(process, hangs=False)
        if not ready:
            self._errors.seek(0)
            raise RuntimeError(self._errors.read()[-3000:].decode(errors="replace"))
        return process

    def _answer(self, process: subprocess.Popen[bytes], *, hangs: bool) -> bytes | None:
        assert process.stdout is not None
        began, before = time.monotonic(), _processor_seconds(process.pid)
        while not select.select([process.stdout], [], [], 0.5)[0]:
            used = _processor_seconds(process.pid) - before
            if hangs and (used > HANG_SECONDS or time.monotonic() - began > 3 * HANG_SECONDS):
                return None
        return process.stdout.readline()

    def _ended(self) -> int:
        assert self._process is not None
        process, self._process = self._process, None
        code = process.wait()
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.stdout.close()
        return code


@contextlib.contextmanager
def watched(maker: str, **given: object) -> Iterator[Watched]:
    """A watched process, ended at the end."""
    process = Watched(maker, **given)
    try:
        yield process
    finally:
        process.close()


class Counted:
    """What the cases of a row came to."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.wrong: list[str] = []

    def add(self, case: object, ended: Ended) -> None:
        """Count a case, and remember one that failed."""
        self.outcomes[ended.outcome] += 1
        if ended.outcome in FAILURES:
            self.wrong.append(f"{ended.outcome}: {case}: {ended.detail}")

    def check(self) -> None:
        """Fails if a case failed, and shows the first ones."""
        assert not self.wrong, f"{len(self.wrong)} cases failed:\n" + "\n".join(self.wrong[:40])


def _processor_seconds(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def ending(run: Callable[[], Ended]) -> Ended:
    """How a case ended, by what it returned or raised."""
    from voxcpm_constants.errors import VoxCPMError

    try:
        return run()
    except VoxCPMError as error:
        return Ended(LINES if len(str(error).splitlines()) != 1 else REFUSED, str(error)[:300])
    except MemoryError as error:
        return Ended(MEMORY, _place(error))
    except RecursionError as error:
        return Ended(TRACEBACK, _place(error))
    except OSError as error:
        return Ended(SYSTEM, str(error)[:300])
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        if "bad_alloc" in str(error) or "Failed to allocate" in str(error):
            return Ended(MEMORY, _place(error))
        return Ended(TRACEBACK, _place(error))


def _place(error: BaseException) -> str:
    """The error, and the innermost places of this project that it came through."""
    import traceback

    frames = [
        f"{Path(frame.filename).name}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)
    ]
    return f"{type(error).__name__}: {str(error)[:160]!r} at {' '.join(frames[-5:])}"


def _serve(maker: str, given: str) -> None:
    import resource
    import warnings

    warnings.simplefilter("ignore")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    module, _, name = maker.partition(":")
    run: Callable[[Any], Ended] = getattr(importlib.import_module(module), name)(**json.loads(given))
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + MEMORY_ABOVE
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        case = json.loads(line)
        print(json.dumps(ending(lambda case=case: run(case))), file=answers, flush=True)


if __name__ == "__main__":
    _serve(*sys.argv[1:])
