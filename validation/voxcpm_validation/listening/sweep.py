"""Fewer or more Euler steps, weaker or stronger guidance: what they cost in words, likeness and length, and in time.

One cell is the part "sentences" in one precision with one number of steps and one `cfg_value`, with the same noise as
all others. A cell is a file, so that an interrupted sweep goes on where it ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from rich.table import Table

from voxcpm_constants.errors import InputError
from voxcpm_constants.manifest import Manifest
from voxcpm_constants.step_models import Precision
from voxcpm_runtime.storage.whole_file import make_folder, whole_file
from voxcpm_runtime.voxcpm import VoxCPM
from voxcpm_validation.listening.parts import Ears, Extent, listen
from voxcpm_validation.listening.plots import save_plot
from voxcpm_validation.listening.scores import Scores
from voxcpm_validation.listening.speakers import bundle_speaker

STEPS = (4, 5, 6, 8, 10, 16)
CFG_VALUES = (2.0, 1.5, 3.0)
"""Upstream's default first: what an interrupted sweep has is what matters most."""
_PRECISIONS: tuple[Precision, ...] = ("int8", "fp16")
_TIMES = "times.json"
_TIMED_TEXT = "By listening a few minutes a day, you will hear the difference between two voices."
_TIMED_PATCHES = 12


class Cell(BaseModel):
    """What was heard in one precision, with one number of Euler steps and one strength of guidance."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bundle: str
    """The bundle's digest in this precision."""
    precision: str
    steps: int
    cfg_value: float
    sentences: int
    seed: int
    scores: tuple[Scores, ...]
    """Zero-shot, and as a continuation of the first voice."""

    @property
    def file(self) -> str:
        """The name of its file."""
        return f"{self.precision}-{self.steps}-{self.cfg_value:g}.json"


class PatchTime(BaseModel):
    """Milliseconds of one patch, decoder included, by precision and number of Euler steps: the least of the rounds.

    Other work on the machine only adds time, and a median on a busy one had fewer steps slower than more.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    bundle: str
    """The bundle's digest in this precision."""
    precision: str
    steps: int
    milliseconds: float


_TIMES_FORMAT = TypeAdapter(tuple[PatchTime, ...])


class Sweep(BaseModel):
    """All cells, and the times."""

    cells: tuple[Cell, ...]
    times: tuple[PatchTime, ...]

    def milliseconds(self, precision: str, steps: int) -> float:
        """Milliseconds of a patch. Raises KeyError if that was not timed."""
        return {(t.precision, t.steps): t.milliseconds for t in self.times}[precision, steps]


def sweep(
    bundle: Path,
    folder: Path,
    ears: Ears,
    *,
    sentences: int,
    seed: int = 0,
    steps: Sequence[int] = STEPS,
    cfg_values: Sequence[float] = CFG_VALUES,
    report: Callable[[str], None] = lambda _: None,
) -> Sweep:
    """Listen to each cell that has no file in the folder yet, then time a patch, unless that was done.

    Times of another bundle or other steps are measured again. report: called with what is being done. Raises InputError
    for a bundle with neither precision, a damaged file, or cells of another bundle, seed or number of sentences.
    """
    manifest = Manifest.read(bundle)
    precisions = [p for p in _PRECISIONS if p in manifest.precisions]
    if not precisions:
        raise InputError(
            f"{bundle}: expected a bundle with {' or '.join(_PRECISIONS)}; it has {', '.join(manifest.precisions)}; "
            "convert it in one of them"
        )
    make_folder(folder)
    # Before hours of listening: a damaged file is reported at once.
    times = _read_times(folder / _TIMES)
    cells = []
    for cfg_value, precision, count in product(cfg_values, precisions, steps):
        expected = Cell(
            bundle=manifest.digest(precision), precision=precision, steps=count, cfg_value=cfg_value,
            sentences=sentences, seed=seed, scores=(),
        )  # fmt: skip
        path = folder / expected.file
        if path.exists():
            cells.append(_read(path, expected))
            continue
        cells.append(_heard(bundle, expected, ears, report))
        with whole_file(path) as file:
            file.write(cells[-1].model_dump_json(indent=1).encode() + b"\n")
    wanted = {(manifest.digest(p), p, n) for p, n in product(precisions, steps)}
    if not wanted <= {(t.bundle, t.precision, t.steps) for t in times}:
        report("timing a patch")
        times = patch_times(bundle, precisions, steps)
        with whole_file(folder / _TIMES) as file:
            file.write(_TIMES_FORMAT.dump_json(times, indent=1) + b"\n")
    return Sweep(cells=tuple(cells), times=times)


def patch_times(
    bundle: Path, precisions: Sequence[Precision], steps: Sequence[int], rounds: int = 20
) -> tuple[PatchTime, ...]:
    """The time of a patch in each precision with each number of steps, one after another in every round."""
    manifest = Manifest.read(bundle)
    voices = {precision: VoxCPM.from_bundle(bundle, precision) for precision in precisions}
    settings = list(product(precisions, steps))
    seconds: dict[tuple[Precision, int], list[float]] = {setting: [] for setting in settings}
    for turn in range(rounds + 1):
        for precision, count in settings if turn % 2 else reversed(settings):
            began = time.perf_counter()
            voices[precision].generate(
                _TIMED_TEXT, seed=0, inference_timesteps=count, min_len=_TIMED_PATCHES, max_len=_TIMED_PATCHES,
                retry_badcase=False,
            )  # fmt: skip
            if turn:  # the first round only warms up
                seconds[precision, count].append(time.perf_counter() - began)
    for voice in voices.values():
        voice.close()
    return tuple(
        PatchTime(
            bundle=manifest.digest(p), precision=p, steps=n, milliseconds=1e3 * min(taken) / _TIMED_PATCHES
        )
        for (p, n), taken in seconds.items()
    )


def sweep_table(measured: Sweep) -> Table:
    """A row for each cell."""
    table = Table(
        "precision", "cfg", "steps", "ms a patch", "WER: zero-shot", "in a voice", "length: zero-shot", "in a voice",
        "likeness", "again", title="Euler steps and guidance",
    )  # fmt: skip
    for cell in sorted(measured.cells, key=lambda c: (c.precision, c.cfg_value, c.steps)):
        alone, voice = cell.scores
        table.add_row(
            cell.precision,
            f"{cell.cfg_value:g}",
            str(cell.steps),
            f"{measured.milliseconds(cell.precision, cell.steps):.0f}",
            f"{alone.word_error_rate:.1%}",
            f"{voice.word_error_rate:.1%}",
            f"{alone.length_ratio:.2f}",
            f"{voice.length_ratio:.2f}",
            f"{voice.similarity:.2f}",
            str(alone.tried_again + voice.tried_again),
        )
    return table


def write_sweep_plot(measured: Sweep, folder: Path) -> Path:
    """Write `sweep.svg` into a folder; its path. A line for each precision and strength of guidance."""
    from matplotlib.figure import Figure

    panels: tuple[tuple[str, Callable[[Cell], float | None]], ...] = (
        ("word errors, zero-shot, %", lambda cell: 100 * cell.scores[0].word_error_rate),
        ("word errors, in a voice, %", lambda cell: 100 * cell.scores[1].word_error_rate),
        ("likeness to the voice", lambda cell: cell.scores[1].similarity),
        ("length over natural, in a voice", lambda cell: cell.scores[1].length_ratio),
    )
    figure = Figure(figsize=(8, 10), layout="constrained")
    axes = figure.subplots(len(panels), 1, sharex=True)
    lines: dict[tuple[str, float], list[Cell]] = {}
    for cell in sorted(measured.cells, key=lambda c: (c.precision, c.cfg_value, c.steps)):
        lines.setdefault((cell.precision, cell.cfg_value), []).append(cell)
    colours = {value: f"C{index}" for index, value in enumerate(sorted({cfg for _, cfg in lines}))}
    for axis, (label, value) in zip(axes, panels, strict=True):
        for (precision, cfg), cells in lines.items():
            style: dict[str, Any] = {"color": colours[cfg], "linestyle": "-" if precision == "int8" else "--"}
            style |= {"marker": ".", "label": f"{precision}, cfg {cfg:g}"}
            axis.plot([c.steps for c in cells], [value(c) for c in cells], **style)
        axis.set_ylabel(label)
        axis.grid(alpha=0.3)
    axes[0].legend(ncols=2)
    axes[-1].set_xlabel("Euler steps")
    save_plot(figure, folder / "sweep.svg")
    return folder / "sweep.svg"


def _heard(bundle: Path, expected: Cell, ears: Ears, report: Callable[[str], None]) -> Cell:
    options = {"inference_timesteps": expected.steps, "cfg_value": expected.cfg_value}
    heard = listen(
        f"bundle {expected.precision}, {expected.steps} steps, cfg {expected.cfg_value:g}",
        bundle_speaker(bundle, expected.precision, **options),
        ["sentences"],
        ears=ears,
        extent=Extent(sentences=expected.sentences, voices=1),
        seed=expected.seed,
        report=report,
    )
    return expected.model_copy(update={"scores": heard.sentences})


def _read(path: Path, expected: Cell) -> Cell:
    try:
        cell = Cell.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        raise InputError(f"{path}: expected a cell of a sweep; remove it to measure it again") from None
    if cell.model_copy(update={"scores": ()}) != expected:
        raise InputError(
            f"{path}: a cell of another bundle, seed or number of sentences; name another folder"
        )
    return cell


def _read_times(path: Path) -> tuple[PatchTime, ...]:
    """The times in a file; none if there is no file."""
    if not path.exists():
        return ()
    try:
        return _TIMES_FORMAT.validate_json(path.read_bytes())
    except (OSError, ValidationError):
        raise InputError(f"{path}: expected the times of a sweep; remove it to measure them again") from None
