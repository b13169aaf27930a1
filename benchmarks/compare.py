"""Interleaved benchmark of two or more contenders on one bundle, as ratios to the first.

    python benchmarks/compare.py BUNDLE CONTENDER CONTENDER ... [--rounds 9] [--only locdit_step] [--start] [--json]

A contender is a checkout of this project, or upstream's PyTorch code on the bundle's checkpoint:

    TREE                                  a folder; `.` is the current one
    TREE:precision=fp16,threads=1         with keywords of `VoxCPM.from_bundle`
    TREE:bundle=FOLDER                    with its own bundle: an old tree cannot read a newer manifest
    upstream:float32, upstream:bfloat16   needs --checkpoint

    python benchmarks/compare.py voxcpm-1.5 ../before .
    python benchmarks/compare.py voxcpm-1.5 upstream:float32 upstream:bfloat16 . --checkpoint VoxCPM1.5

Each contender is a process with its own tree's environment (`TREE/.venv`, if it exists) and its own cache folder, which
is warmed up before anything is measured. It idles while another one runs. In each round every contender measures each
figure once, in alternating order (A B, then B A), so that other load on the machine slows all of them. A figure is the
median over the rounds; a ratio is the median of the ratios within a round, with their quartiles: if these include 1,
there is no measurable difference.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from voxcpm_runtime.backends.machine import chip, cores, cpu_features

ROOTS = ("constants", "runtime", "conversion", "validation")
THIS_TREE = Path(__file__).resolve().parents[1]
UPSTREAM = ("upstream:float32", "upstream:bfloat16")
WORKER = Path(__file__).with_name("contender.py")
Figures = dict[str, list[list[float]]]
"""Values of each figure, by contender and round."""


@dataclass(frozen=True)
class Contender:
    """A checkout with options, or upstream in a dtype."""

    name: str
    tree: Path
    dtype: str | None
    options: dict[str, Any]


class Worker:
    """A contender's process."""

    def __init__(self, contender: Contender, arguments: argparse.Namespace, cache: str) -> None:
        """Start one. cache: its cache folder."""
        job = {
            "bundle": str(Path(contender.options.get("bundle", arguments.bundle)).resolve()),
            "checkpoint": arguments.checkpoint,
            "dtype": contender.dtype,
            "options": {"threads": arguments.threads, **contender.options},
            **{name: getattr(arguments, name) for name in ("threads", "patches", "steps")},
        }
        job["options"].pop("bundle", None)
        python = contender.tree / ".venv" / "bin" / "python"
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(str(contender.tree / root) for root in ROOTS),
            "OMP_NUM_THREADS": str(arguments.threads),
            "VOXCPM_COREML_CACHE": cache,
        }
        self._name = contender.name
        began = time.perf_counter()
        self._process: Any = subprocess.Popen(  # noqa: S603 - the file next to this one
            [str(python if python.exists() else sys.executable), str(WORKER), json.dumps(job)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        opened = self._read_response()
        if isinstance(opened, str):
            _fail(f"{self._name}: {opened}")
        self.measurements: list[str] = opened
        """Names of its measurements."""
        self.start_seconds = time.perf_counter() - began
        """Seconds from a new process to an open bundle."""

    def figures(self, measurement: str) -> dict[str, float]:
        """The figures of one measurement, by name; none if this contender lacks it."""
        if measurement not in ("memory", *self.measurements):
            return {}
        print(measurement, file=self._process.stdin, flush=True)
        return self._read_response()

    def close(self) -> None:
        """End the process."""
        self._process.stdin.close()
        self._process.wait()

    def _read_response(self) -> Any:
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self._name} exited with code {self._process.wait()}; see the reason above")
        return json.loads(line)


def main() -> None:
    """Measure all contenders in turn and print their ratios, as a table or as JSON."""
    arguments = _arguments()
    load = os.getloadavg()[0]
    measured = {name: _compare(values) for name, values in _measure(arguments).items()}
    result = {
        "processor": chip(),
        "features": cpu_features(),
        "threads": arguments.threads,
        "rounds": arguments.rounds,
        "load": [load, os.getloadavg()[0]],
        "contenders": [contender.name for contender in arguments.contenders],
        "figures": measured,
    }
    if arguments.json:
        print(json.dumps(result, indent=1))
    else:
        _print_table(result)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bundle", help="a folder")
    parser.add_argument("contenders", nargs="+", type=_contender, metavar="contender")
    parser.add_argument("--checkpoint", help="the bundle's checkpoint, for upstream")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--patches", type=int, default=32, help="VoxCPM 1.5 needs 32 patches for the text")
    parser.add_argument("--steps", type=int, default=10, help="Euler steps")
    parser.add_argument("--only", action="append", help="measure only this: a step model, prefill, speech")
    parser.add_argument("--start", action="store_true", help="also time start-up, with warm and empty caches")
    parser.add_argument("--threads", type=int, default=cores())
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if len(arguments.contenders) < 2:
        parser.error("expected two contenders or more")
    for option in ("rounds", "patches", "threads"):
        if getattr(arguments, option) < 1:
            parser.error(f"--{option} {getattr(arguments, option)}: expected 1 or more")
    if arguments.checkpoint is None and any(c.dtype for c in arguments.contenders):
        parser.error("upstream needs --checkpoint")
    return arguments


def _contender(name: str) -> Contender:
    place, _, rest = name.partition(":")
    if name in UPSTREAM:
        return Contender(name, THIS_TREE, rest, {})
    tree = Path(place).resolve()
    if not (tree / "runtime" / "voxcpm_runtime").is_dir():
        raise argparse.ArgumentTypeError(
            f"{name}: expected a checkout of this project, or {' or '.join(UPSTREAM)}"
        )
    pairs = (pair.partition("=") for pair in rest.split(",") if pair)
    options = {option: int(value) if value.isdecimal() else value for option, _, value in pairs}
    return Contender(name, tree, None, options)


def _measure(arguments: argparse.Namespace) -> Figures:
    """Values of each figure, by contender, one per round; none if a contender lacks the figure."""
    figures: Figures = {}
    contenders: list[Contender] = arguments.contenders

    def in_turn(call: Callable[[int], dict[str, float]], turn: int) -> None:
        order = range(len(contenders))
        for i in order if turn % 2 == 0 else reversed(order):
            for name, value in call(i).items():
                figures.setdefault(name, [[] for _ in contenders])[i].append(value)

    # One cache folder per contender: trees with different graphs would evict each other's entries.
    with tempfile.TemporaryDirectory() as caches:
        folders = [f"{caches}/{i}" for i in range(len(contenders))]
        for contender, folder in zip(contenders, folders, strict=True):
            if contender.dtype is None:
                # The first start lowers the step models, which would raise the peak memory.
                Worker(contender, arguments, folder).close()
        workers = [Worker(c, arguments, folder) for c, folder in zip(contenders, folders, strict=True)]
        names = list(dict.fromkeys(name for worker in workers for name in worker.measurements))
        selected = _selected(names, arguments.only)
        for turn in range(arguments.rounds):
            for name in selected:
                in_turn(lambda i: workers[i].figures(name), turn)  # noqa: B023 - called immediately
            print(f"round {turn + 1} of {arguments.rounds}", file=sys.stderr)
        in_turn(lambda i: workers[i].figures("memory"), 0)
        for worker in workers:
            worker.close()
    if arguments.start:
        with tempfile.TemporaryDirectory() as caches:
            for turn in range(arguments.rounds):
                in_turn(lambda i: _starts(contenders[i], arguments, f"{caches}/{turn}-{i}"), turn)  # noqa: B023 - called immediately
    return figures


def _selected(names: list[str], only: list[str] | None) -> list[str]:
    """The measurements named by `--only`, or all; a step model includes all its lengths."""
    short = [name.partition("[")[0] for name in names]
    if unknown := [name for name in only or [] if name not in short]:
        _fail(f"--only {unknown[0]}: expected one of {', '.join(dict.fromkeys(short))}")
    return [name for name, own in zip(names, short, strict=True) if not only or own in only]


def _fail(reason: str) -> NoReturn:
    print(f"compare.py: {reason}", file=sys.stderr)
    raise SystemExit(2)


def _starts(contender: Contender, arguments: argparse.Namespace, cache: str) -> dict[str, float]:
    """Seconds from a new process to an open bundle: with an empty cache, then with a warm one."""
    seconds = {}
    for kind in ("cold", "warm"):
        worker = Worker(contender, arguments, cache)
        worker.close()
        seconds[f"{kind} start, s"] = worker.start_seconds
    return seconds


def _compare(values: Sequence[Sequence[float]]) -> list[dict[str, Any] | None]:
    """Each contender's median of a figure, and quartiles of its ratios to the first contender; None without values."""
    first = values[0]
    return [
        {
            "median": statistics.median(own),
            "ratio": quartiles([b / a for a, b in zip(first, own, strict=True)]) if first else None,
        }
        if own
        else None
        for own in values
    ]


def quartiles(ratios: Sequence[float]) -> list[float]:
    """The lower quartile, the median and the upper quartile."""
    return statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else [ratios[0]] * 3


def _print_table(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    letters = string.ascii_uppercase[: len(result["contenders"])]
    table = Table("figure", *letters, *(f"{letter} ÷ A" for letter in letters[1:]))
    for figure, compared in result["figures"].items():
        medians = ["–" if c is None else f"{c['median']:.3g}" for c in compared]
        ratios = [
            "–" if c is None or not c["ratio"] else "{1:.2f} ({0:.2f} to {2:.2f})".format(*c["ratio"])
            for c in compared
        ]
        table.add_row(figure, *medians, *ratios[1:])
    console = Console()
    if not console.is_terminal:
        console.width = 200
    console.print(table)
    for letter, name in zip(letters, result["contenders"], strict=True):
        console.print(f"{letter}: {name}", highlight=False)
    before, after = result["load"]
    console.print(
        f"{result['processor']}: {', '.join(result['features']) or 'features unknown'}; {result['threads']} threads; "
        f"load average {before:.1f} before, {after:.1f} after; {result['rounds']} rounds: medians, and medians of the "
        "ratios within a round with their quartiles",
        highlight=False,
    )


if __name__ == "__main__":
    main()
