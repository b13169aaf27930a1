"""docs/reliability.md has the numbers of cases that the harness has."""

from __future__ import annotations

import re

from documents import REPOSITORY
from robustness.cases import (
    BY_SEED,
    DAMAGE,
    EACH_CALL,
    EACH_ROLE,
    EVERY_CALL,
    INPUTS,
    JOBS,
    KILLS,
)
from robustness.fuzz import READERS, engines, inputs
from robustness.hostile import CASES as HOSTILE
from robustness.hostile import CHECKPOINT_CASES
from robustness.test_hostile_content import SOME

PAGE = (REPOSITORY / "docs/reliability.md").read_text(encoding="utf-8")
PROSE = " ".join(PAGE.split())


def table(section: str) -> list[list[str]]:
    """The rows of the first table of a section, without its head."""
    text = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"
    ]
    return rows[2:]


def test_kills() -> None:
    found = {row[0].partition(":")[0].replace("`", ""): int(row[1]) for row in table("Kill")}

    assert found == KILLS
    assert sum(KILLS.values()) == 190


def test_faults() -> None:
    found = {name: row[1:] for row in table("Faults") for name in row[0].replace("`", "").split(" · ")}

    torture = dict.fromkeys(EVERY_CALL, "every call") | dict.fromkeys(
        [*EACH_ROLE, JOBS], "one per kind and role"
    )
    faults = dict.fromkeys([*EACH_CALL, JOBS], "every call")
    assert found == {name: [torture.get(name, "–"), faults.get(name, "–")] for name in torture | faults}


def test_damage() -> None:
    found: dict[str, dict[str, tuple[int, int]]] = {}
    for scene, kind, without, matching in table("Damage"):
        found.setdefault(scene, {})[kind.partition(":")[0]] = (int(without), int(matching))

    assert found == DAMAGE
    assert sum(sum(both) for kinds in DAMAGE.values() for both in kinds.values()) == 2000


def test_hostile_content() -> None:
    texts = sum(name.startswith("text of") for name in HOSTILE)
    others = (
        f"{len(SOME)} cases of bundles, voices, recordings and names, {len(CHECKPOINT_CASES)} of checkpoints"
    )

    assert f"{others}, and {texts} texts" in PROSE
    assert len(SOME) + len(CHECKPOINT_CASES) + texts == len(HOSTILE)


def test_changed_inputs() -> None:
    rows = {row[0].replace("`", ""): row[2] for row in table("Changed inputs")}
    found = {name: set(re.split(", ", said)) for name, said in rows.items()}

    assert found == {name: set(engines(name)) for name in READERS}
    assert (
        f"{INPUTS:,} inputs per reader, divided among its engines: {BY_SEED:,} by seed where hypothesis works too"
        in PROSE
    )
    for name in READERS:
        assert sum(inputs(name, engine) for engine in engines(name)) == INPUTS
