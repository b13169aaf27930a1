"""The plots of a listening test: a narration minute by minute, and the lengths and errors of prose's segments."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from voxcpm_runtime.storage.whole_file import make_folder, whole_file
from voxcpm_validation.listening.parts import Report
from voxcpm_validation.listening.recognition import word_errors
from voxcpm_validation.listening.scores import LONG, SHORT, Minute

_PANELS: tuple[tuple[str, Callable[[Minute], float]], ...] = (
    ("word errors, %", lambda minute: 100 * minute.word_error_rate),
    ("words a minute", lambda minute: minute.words_per_minute),
    ("level, dB", lambda minute: minute.level),
    ("likeness to minute 1", lambda minute: minute.similarity),
)


def write_plots(report: Report, folder: Path) -> list[Path]:
    """Write `narration.svg` and `prose.svg` into a folder, for the parts that were measured; the paths written."""
    drawn: list[tuple[Path, Callable[[Report], Any]]] = [
        (folder / f"{part}.svg", draw)
        for part, draw in (("narration", _narration), ("prose", _prose))
        if getattr(report, part)
    ]
    make_folder(folder)
    for path, draw in drawn:
        _save_plot(draw(report), path)
    return [path for path, _ in drawn]


def _save_plot(figure: Any, path: Path) -> None:
    """Write a figure of matplotlib as SVG: without a date and with fixed ids, so that equal scores give equal files."""
    import matplotlib as mpl

    with mpl.rc_context({"svg.hashsalt": "voxcpm", "svg.fonttype": "none"}), whole_file(path) as file:
        figure.savefig(file, format="svg", metadata={"Date": None})


def _narration(report: Report) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 7), layout="constrained")
    panels = figure.subplots(len(_PANELS), 1, sharex=True)
    for score in report.narration:
        minutes = [minute.minute for minute in score.minutes]
        for panel, (_, value) in zip(panels, _PANELS, strict=True):
            panel.plot(minutes, [value(m) for m in score.minutes], marker=".", label=score.system)
    for panel, (label, _) in zip(panels, _PANELS, strict=True):
        panel.set_ylabel(label)
        panel.grid(alpha=0.3)
    panels[0].set_ylim(bottom=0)
    panels[-1].set_ylim(top=1.02)
    panels[-1].set_xlabel("minute")
    panels[0].legend()
    return figure


def _prose(report: Report) -> Any:
    from matplotlib.figure import Figure

    whole = [score for score in report.prose if score.kind == "all"]
    figure = Figure(figsize=(8, 1 + 2 * len(whole)), layout="constrained")
    panels = figure.subplots(len(whole), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for panel, score in zip(panels, whole, strict=True):
        ratios = [segment.length_ratio for segment in score.segments]
        errors = [100 * word_errors([s.heard.said], [s.heard.heard]).rate for s in score.segments]
        panel.scatter(ratios, errors, s=8)
        for bound in (SHORT, LONG):
            panel.axvline(bound, linewidth=0.5, color="grey")
        panel.set_title(f"{score.system}, {score.case}: {score.word_error_rate:.1%}", fontsize="medium")
        panel.set_ylabel("word errors, %")
    panels[-1].set_xlabel("length of a segment over its natural length")
    return figure
