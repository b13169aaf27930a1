"""How long the way of a text is: the project's own functions that run before ONNX Runtime first computes a step model.

    python tests/freeze/walk.py [--list] [--part PART]

Counts distinct functions, comprehensions and lambdas, not modules' or classes' bodies, of the built-in voice speaking
"hello there.": from `VoxCPM.generate` of an open bundle, from the command `generate`, and from the second request to a
running server. A function called in another thread counts too; a generator that is resumed is a call. Then the
generators that lie on each other in a stream: the longest stack of generator frames while a step model computes, all of
which a chunk passes on its way out. With `--part convert`, all functions of a conversion of the built-in voice, which
takes minutes, and those of them that neither the runtime nor the gate, the alignment and the test vectors account for.
"""

# ruff: noqa: T201 - a script that prints
import argparse
import inspect
import re
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import CodeType

ROOTS = tuple(f"{Path(__file__).resolve().parents[2] / root}/" for root in (
    "constants", "conversion", "runtime", "server", "training", "validation"))  # fmt: skip
TEXT = "hello there."
_CHECKS = re.compile(r"/runtime/|/(gate|recording|alignment|vectors)\.py$")


class Walk:
    """The functions called until a step model computes, and the generators on the stack at each call."""

    def __init__(self):
        self.calls: Counter[CodeType] = Counter()
        self.before_call: Counter[CodeType] | None = None
        """The calls until a `StepFunction` was called; None until then."""
        self.before: Counter[CodeType] | None = None
        """The calls until ONNX Runtime computed one; None until then."""
        self.generators: list[CodeType] = []
        """The longest stack of generators during a step model, outermost first."""

    def __call__(self, frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_flags & inspect.CO_OPTIMIZED and code.co_filename.startswith(ROOTS):
            if code.co_name == "__call__" and code.co_varnames[:3] == ("self", "inputs", "state"):
                self.before_call = self.before_call or Counter(self.calls)
            self.calls[code] += 1
        elif event == "call" and code.co_name.startswith("run") and "onnxruntime" in code.co_filename:
            if self.before_call is not None:  # Opening a bundle may compute small graphs of its own.
                self.before = self.before or Counter(self.calls)
            stacked = [f.f_code for f in _stack(frame) if f.f_code.co_flags & inspect.CO_GENERATOR][::-1]
            self.generators = max(self.generators, stacked, key=len)

    @contextmanager
    def watching(self):
        """A context in which all threads' calls count."""
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]


def _stack(frame):
    while frame is not None:
        if frame.f_code.co_filename.startswith(ROOTS):
            yield frame
        frame = frame.f_back


def _place(code):
    root = next(root for root in ROOTS if code.co_filename.startswith(root))
    name = getattr(code, "co_qualname", code.co_name)
    return f"{code.co_filename.removeprefix(root)}:{code.co_firstlineno} {name}"


def _generate(walk, streamed=False):
    from voxcpm_runtime import VoxCPM

    with VoxCPM.from_bundle(None) as tts, walk.watching():
        list((tts.generate_streaming if streamed else tts.generate)(TEXT, seed=7))


def _command(walk):
    from voxcpm_runtime.commands.cli import main as run

    with tempfile.TemporaryDirectory() as folder, walk.watching():
        run(["generate", "--text", TEXT, "--seed", "7", "--quiet", "-o", str(Path(folder, "hello.wav"))])


def _request(walk):
    """A request to a server that has spoken before; its threads are watched from their start."""
    from starlette.testclient import TestClient

    from voxcpm_runtime import VoxCPM
    from voxcpm_server.application import create_app

    body = {"input": TEXT, "seed": 7, "response_format": "pcm"}
    with (
        VoxCPM.from_bundle(None) as tts,
        walk.watching(),
        TestClient(create_app(tts), base_url="http://127.0.0.1") as client,
    ):
        client.post("/v1/audio/speech", json=body).raise_for_status()
        walk.calls.clear()
        walk.before_call = walk.before = None
        client.post("/v1/audio/speech", json=body).raise_for_status()


def _convert(walk):
    from voxcpm_conversion.default_bundle import DEFAULT_CHECKPOINT
    from voxcpm_runtime.commands.cli import main as run

    with tempfile.TemporaryDirectory() as folder, walk.watching():
        run(["convert", str(DEFAULT_CHECKPOINT), "-o", str(Path(folder, "bundle"))])


PARTS = {
    "generate": _generate,
    "command": _command,
    "request": _request,
    "stream": partial(_generate, streamed=True),
    "convert": _convert,
}


def main():
    """Print the counts, and with `--list` the functions."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="each function with its number of calls")
    parser.add_argument("--part", choices=PARTS, help="one alone; each has a process, as caches stay filled")
    part, listed = (given := parser.parse_args()).part, given.list
    if part is None:
        for each in [part for part in PARTS if part != "convert"]:  # which takes minutes
            subprocess.run([sys.executable, __file__, "--part", each, *sys.argv[1:]], check=True)
        return
    PARTS[part](walk := Walk())
    if part == "stream":
        print(f"stream: {len(walk.generators)} generators")
        print(*(f"         {_place(code)}" for code in walk.generators if listed), sep="\n")
        return
    passed = walk.calls if part == "convert" else walk.before
    if passed is None:
        sys.exit(f"{part}: no step model computes")

    def size(codes):
        return f"{len(codes)} functions in {len({code.co_filename for code in codes})} modules"

    print(f"{part}: {size(passed)}, {sum(passed.values())} calls")
    if part == "convert":
        own = [code for code in passed if not _CHECKS.search(code.co_filename)]
        print(f"         {size(own)} without what runs the finished packages")
    for code in sorted(passed, key=_place) if listed else ():
        print(f"  {passed[code]:6} {_place(code)}")


if __name__ == "__main__":
    main()
