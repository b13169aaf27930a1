"""How long the way of a text is: the project's own functions that run before ONNX Runtime first computes a step model.

    python tests/freeze/walk.py [--list]

Counts distinct functions, comprehensions and lambdas, not modules' or classes' bodies, of the built-in voice speaking
"hello there.": from `VoxCPM.generate` of an open bundle, and from the command `generate`. A function called in another
thread counts too; a generator that is resumed is a call. Then the generators that lie on each other in a stream: the
longest stack of generator frames while a step model computes, all of which a chunk passes on its way out.
"""

# ruff: noqa: T201 - a script that prints
import argparse
import inspect
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOTS = tuple(f"{Path(__file__).resolve().parents[2] / root}/" for root in (
    "constants", "conversion", "runtime", "server", "training", "validation"))  # fmt: skip
TEXT = "hello there."
PARTS = ("generate", "command", "stream")


class Walk:
    """The functions called until a step model computes, and the generators on the stack at each call."""

    def __init__(self) -> None:
        self.calls: Counter[CodeType] = Counter()
        self.before_call: Counter[CodeType] | None = None
        """The calls until a `StepFunction` was called; None until then."""
        self.before: Counter[CodeType] | None = None
        """The calls until ONNX Runtime computed one; None until then."""
        self.generators: list[CodeType] = []
        """The longest stack of generators during a step model, outermost first."""

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
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
    def watching(self) -> Iterator[None]:
        """A context in which all threads' calls count."""
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        if frame.f_code.co_filename.startswith(ROOTS):
            yield frame
        frame = frame.f_back


def _place(code: CodeType) -> str:
    root = next(root for root in ROOTS if code.co_filename.startswith(root))
    name = getattr(code, "co_qualname", code.co_name)
    return f"{code.co_filename.removeprefix(root)}:{code.co_firstlineno} {name}"


def main() -> None:
    """Print the counts, and with `--list` the functions."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="each function with its number of calls")
    parser.add_argument(
        "--part", choices=PARTS, help="one alone; all have a process each, as caches stay filled"
    )
    part, listed = (given := parser.parse_args()).part, given.list
    if part is None:
        for each in PARTS:
            subprocess.run([sys.executable, __file__, "--part", each, *sys.argv[1:]], check=True)
        return
    walk = Walk()
    if part == "command":
        from voxcpm_runtime.commands.cli import main as run

        with tempfile.TemporaryDirectory() as folder, walk.watching():
            run(["generate", "--text", TEXT, "--seed", "7", "--quiet", "-o", str(Path(folder, "hello.wav"))])
    else:
        from voxcpm_runtime import VoxCPM

        with VoxCPM.from_bundle(None) as tts, walk.watching():
            if part == "generate":
                tts.generate(TEXT, seed=7)
            else:
                list(tts.generate_streaming(TEXT, seed=7))
    if part == "stream":
        print(f"generate_streaming: {len(walk.generators)} generators")
        for code in walk.generators if listed else ():
            print(f"         {_place(code)}")
        return
    for end, before in (("is called", walk.before_call), ("computes", walk.before)):
        if before is None:
            sys.exit(f"{part}: no step model {end}")
        modules = {code.co_filename for code in before}
        calls = sum(before.values())
        print(
            f"{part}, until a step model {end}: {len(before)} functions in {len(modules)} modules, {calls} calls"
        )
    for code in sorted(walk.before, key=_place) if listed else ():
        print(f"  {walk.before[code]:6} {_place(code)}")


if __name__ == "__main__":
    main()
