"""A flipped byte, a truncation and a swap in every file that is read, with and without digests that match."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from robustness.cases import DAMAGE
from robustness.totals import Totals
from robustness.watched import Counted, Watched, watched
from shared_bundles import write_bundle
from voxcpm_constants.step_models import StepSizes


def _cases(counts: dict[str, tuple[int, int]], seed: int, share: float = 1.0) -> list[dict[str, object]]:
    made: list[dict[str, object]] = []
    for kind, both in counts.items():
        for matching, count in zip((False, True), both, strict=True):
            numbers = range(max(1, round(count * share)) if count else 0)
            made += [{"kind": kind, "number": n, "matching": matching, "seed": seed} for n in numbers]
    return made


def _run(process: Watched, cases: list[dict[str, object]], what: str, totals: Totals) -> None:
    rows: dict[str, Counted] = {}
    for case in cases:
        row = f"{what}: {case['kind']}{', digests match' if case['matching'] else ''}"
        rows.setdefault(row, Counted()).add(case, process.run(case))
    for row, counted in rows.items():
        totals.record("Damage", row, counted.outcomes)
    every = Counted()
    every.wrong = [wrong for counted in rows.values() for wrong in counted.wrong]
    every.check()


VOICE = DAMAGE["built-in voice"]
PICKLES = {"model.safetensors": "pytorch_model.bin", "audiovae.safetensors": "audiovae.pth"}
"""The files of weights, and what they are called as pickles."""


def test_some_damage_to_what_a_voice_speaks_with(
    speaking_bundle: Path, totals: Totals, torture_seed: int
) -> None:
    counts = {kind: (both[0], 0) for kind, both in VOICE.items() if kind not in ("prepared", "batch")}
    counts["bundle"] = (120, 60)
    with watched(
        "robustness.damage:scene", bundle=speaking_bundle, kinds=["voice", "prefix", "segments"]
    ) as process:
        _run(process, _cases(counts, torture_seed, 0.05), "built-in voice, some", totals)


@pytest.fixture(scope="session")
def tiny_bundle_of_int8(tiny_checkpoint: Path, conversion: Callable[..., Path]) -> Path:
    """Only what is spoken with: the other two precisions would be converted for nothing."""
    sizes = StepSizes(kv_length=128)
    return conversion("bundle-tiny-int8", write_bundle, tiny_checkpoint, sizes, ("int8",))


BUNDLES = {
    "built-in voice": ("speaking_bundle", "int8"),
    "tiny": ("tiny_bundle_of_int8", "int8"),
    "tiny, macOS 27": ("tiny_bundle_27", "fp16"),
}
"""Scene → the fixture of its bundle, and the precision that speaks."""


@pytest.mark.torture
@pytest.mark.parametrize("name", BUNDLES)
def test_damage_to_what_a_voice_speaks_with(
    request: pytest.FixtureRequest,
    totals: Totals,
    torture_seed: int,
    share: Callable[[int], int],
    name: str,
) -> None:
    fixture, precision = BUNDLES[name]
    given = {"bundle": request.getfixturevalue(fixture), "kinds": list(DAMAGE[name]), "precision": precision}
    with watched("robustness.damage:scene", **given) as process:
        _run(process, _cases(DAMAGE[name], torture_seed, share(1000) / 1000), name, totals)


@pytest.fixture(params=DAMAGE["checkpoint"])
def checkpoint_of_a_form(
    request: pytest.FixtureRequest, tiny_checkpoint: Path, tmp_path: Path, write_lora: Callable[..., Path]
) -> Path:
    """A folder of that form's name, with a checkpoint, or with a LoRA of one."""
    import torch
    from safetensors.torch import load_file

    form: str = request.param
    folder = tmp_path / form
    if form == "lora":
        return write_lora(folder, tiny_checkpoint, enable_lm=True, enable_dit=True, r=2)
    folder.mkdir()
    for path in tiny_checkpoint.iterdir():
        if form == "pickle" and path.name in PICKLES:
            torch.save({"state_dict": load_file(path)}, folder / PICKLES[path.name])
        else:
            (folder / path.name).write_bytes(path.read_bytes())
    return folder


def test_some_damage_to_a_checkpoint(
    checkpoint_of_a_form: Path, tiny_checkpoint: Path, totals: Totals, torture_seed: int
) -> None:
    what = "checkpoint, some"
    _damage_to_a_checkpoint(checkpoint_of_a_form, tiny_checkpoint, what, totals, torture_seed, 0.05)


@pytest.mark.torture
def test_damage_to_a_checkpoint(
    checkpoint_of_a_form: Path,
    tiny_checkpoint: Path,
    totals: Totals,
    torture_seed: int,
    share: Callable[[int], int],
) -> None:
    part = share(1000) / 1000
    _damage_to_a_checkpoint(checkpoint_of_a_form, tiny_checkpoint, "checkpoint", totals, torture_seed, part)


def _damage_to_a_checkpoint(
    folder: Path, checkpoint: Path, what: str, totals: Totals, seed: int, part: float
) -> None:
    cases = _cases({folder.name: DAMAGE["checkpoint"][folder.name]}, seed, part)
    lora = {"checkpoint": checkpoint} if folder.name == "lora" else {}
    maker = "lora" if lora else "checkpoint"
    with watched(f"robustness.damaged_inputs:{maker}", folder=folder, **lora) as process:
        _run(process, cases, what, totals)


def test_some_damage_to_a_servers_jobs(speaking_bundle: Path, totals: Totals, torture_seed: int) -> None:
    with watched("robustness.damaged_inputs:jobs", bundle=speaking_bundle) as process:
        _run(process, _cases(DAMAGE["server"], torture_seed, 0.2), "server, some", totals)


@pytest.mark.torture
def test_damage_to_a_servers_jobs(
    speaking_bundle: Path, totals: Totals, torture_seed: int, share: Callable[[int], int]
) -> None:
    with watched("robustness.damaged_inputs:jobs", bundle=speaking_bundle) as process:
        _run(process, _cases(DAMAGE["server"], torture_seed, share(1000) / 1000), "server", totals)
