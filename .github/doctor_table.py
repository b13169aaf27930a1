"""The doctor's trials as a Markdown table, from the output of `voxcpm-coreml doctor --json`.

python .github/doctor_table.py FILE
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def table(path: Path) -> str:
    """A row per trial, with a star for the chosen unit, then the advice."""
    lines = ["### The doctor", ""]
    try:
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        trials = document["trials"]
    except (OSError, ValueError, KeyError):
        return "\n".join([*lines, "**No report**: the doctor ended early.", ""])
    lines += ["| step model | unit | load s | call ms | correlation | outcome |", "|---|---|---|---|---|---|"]
    for trial in trials:
        chosen = document["chosen"].get(trial["step_model"]) == trial["unit"]
        cells = (
            trial["step_model"],
            trial["unit"],
            number(trial["load_seconds"], 1, 1),
            number(trial["call_seconds"], 1000, 1),
            number(worst(trial["agreement"]), 1, 5),
            f"{trial['outcome']}{' *' if chosen else ''}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", *(f"- {sentence}" for sentence in document["advice"]), ""])


def worst(agreement: dict[str, Any] | None) -> float | None:
    """The lowest correlation of a trial's streams and their final state."""
    if agreement is None:
        return None
    state = agreement["state"]
    return min(*agreement["streams"].values(), 1.0 if state is None else state)


def number(value: float | None, factor: float, places: int) -> str:
    """A number times a factor; empty for None."""
    return "" if value is None else f"{factor * value:.{places}f}"


if __name__ == "__main__":
    sys.stdout.write(table(Path(sys.argv[1])))
