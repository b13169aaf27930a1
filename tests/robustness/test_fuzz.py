"""Changed inputs for every reader of what comes from outside, by seed and by hypothesis."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from robustness.fuzz import BATCH, READERS, STRUCTURED, TAKEN, inputs
from robustness.totals import Totals
from robustness.watched import FAILURES, Watched, watched
from voxcpm_constants.errors import BundleError
from voxcpm_runtime.backends.portable.cache import load_lowered, write_entry
from voxcpm_runtime.backends.portable.package import (
    MODEL_FILE,
    PackageError,
    read_package,
    read_specification,
)
from voxcpm_runtime.backends.portable.step_model import PortableStepModel
from voxcpm_runtime.text.tokenizer import TextTokenizer

_AT_ONCE = 100
SOME = 20
CORPUS = Path(__file__).with_name("corpus")


def _fuzz(
    process: Watched, name: str, engine: str, first: int, count: int
) -> tuple[Counter[str], list[str], float]:
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    slowest = 0.0
    for start in range(first, first + count, _AT_ONCE):
        several = min(_AT_ONCE, first + count - start)
        case = {"reader": name, "engine": engine, "first": start, "count": several}
        ended = process.run(case)
        if ended.outcome == BATCH:
            found = json.loads(ended.detail)
            counts.update(found["counts"])
            wrong += [f"{name} {seed}: {outcome}: {detail}" for seed, outcome, detail in found["wrong"]]
            slowest = max(slowest, found["slowest"])
            continue
        if engine != "seeds":
            counts[ended.outcome] += 1
            wrong.append(f"{case}: {ended.outcome}: {ended.detail}")
            continue
        # One of them ended the process: which one, and how, each tells alone.
        for seed in range(start, start + several):
            ended = process.run({**case, "first": seed, "count": 1})
            counts[ended.outcome] += 1
            if ended.outcome in FAILURES:
                wrong.append(f"{name} {seed}: {ended.outcome}: {ended.detail}")
    # One that ended the process hides how many came before it: it fails anyway.
    assert wrong or counts.total() == count, f"{counts.total()} of {count} inputs were read"
    return counts, wrong, slowest


@pytest.fixture(scope="module")
def readers(speaking_bundle: Path) -> Iterator[Watched]:
    """A process that has every reader."""
    with watched("robustness.fuzz:scene", bundle=speaking_bundle) as process:
        yield process


@pytest.mark.torture
@pytest.mark.parametrize(
    ("name", "engine"),
    [*((name, "seeds") for name in READERS), *((name, "hypothesis") for name in STRUCTURED)],
)
def test_changed_inputs_are_refused_or_taken(
    name: str,
    engine: str,
    readers: Watched,
    totals: Totals,
    torture_seed: int,
    share: Callable[[int], int],
) -> None:
    counts, wrong, slowest = _fuzz(
        readers, name, engine, torture_seed * 1_000_000, share(inputs(name, engine))
    )
    totals.record("Fuzz", f"{name}, {engine}", counts, slowest_seconds=round(slowest, 3))
    assert not wrong, f"{len(wrong)} inputs failed:\n" + "\n".join(wrong[:30])


def test_some_changed_inputs(readers: Watched, totals: Totals, torture_seed: int) -> None:
    every: list[str] = []
    for name in READERS:
        for engine in ("seeds", "hypothesis") if name in STRUCTURED else ("seeds",):
            counts, wrong, slowest = _fuzz(readers, name, engine, torture_seed * 1_000_000, SOME)
            totals.record("Fuzz", f"{name}, {engine}, some", counts, slowest_seconds=round(slowest, 3))
            every += wrong
    assert not every, f"{len(every)} inputs failed:\n" + "\n".join(every[:30])


def test_inputs_that_are_not_changed_are_taken(readers: Watched) -> None:
    """A reader that refused these would refuse all changed ones as well, and show nothing."""
    for name in READERS:
        found = readers.run({"reader": name, "engine": "valid", "first": 0, "count": 0})
        assert found.outcome == BATCH, (name, found)
        assert json.loads(found.detail)["counts"].keys() == {TAKEN}, (name, found)


def test_inputs_that_once_failed(readers: Watched) -> None:
    found = sorted(CORPUS.glob("*.*.*"))
    assert len(found) > 5
    for path in found:
        name = path.name.partition(".")[0]
        if path.name.endswith(".edit.json"):
            case = {"engine": "edited", "edit": json.loads(path.read_bytes())}
        else:
            case = {"engine": "given", "content": path.read_bytes().hex()}
        ended = readers.run({"reader": name, **case})
        assert ended.outcome not in (*FAILURES, TAKEN), (path.name, ended)


@pytest.mark.parametrize("path", sorted(CORPUS.glob("tokenizer_config.*.json")), ids=lambda path: path.name)
def test_tokenizers_that_once_failed(path: Path, tmp_path: Path) -> None:
    from voxcpm_conversion.synthetic_presets import write_tokenizer

    write_tokenizer(tmp_path)
    shutil.copy(path, tmp_path / "tokenizer_config.json")
    with pytest.raises(BundleError, match="tokeniser file"):
        TextTokenizer.from_folder(tmp_path)


def test_a_program_whose_output_nothing_computes(speaking_bundle: Path, tmp_path: Path) -> None:
    """It ended in a KeyError."""
    package = Path(shutil.copytree(speaking_bundle / "int8/feat_encoder.mlpackage", tmp_path / "x.mlpackage"))
    program = read_specification(package)
    (block,) = program.mlProgram.functions["main"].block_specializations.values()
    block.outputs[0] = "nothing"
    (package / MODEL_FILE).write_bytes(program.SerializeToString())
    with pytest.raises(PackageError, match=r"x.mlpackage is damaged.*KeyError: 'nothing'"):
        read_package(package)


def test_a_graph_that_onnx_runtime_refuses(
    speaking_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry of the cache that says of itself that it is whole ended in a traceback of ONNX Runtime's."""
    monkeypatch.setenv("VOXCPM_COREML_CACHE", str(tmp_path))
    package = speaking_bundle / "int8/feat_encoder.mlpackage"
    PortableStepModel(package)
    (entry,) = tmp_path.glob("lowered/*")
    write_entry(entry, replace(load_lowered(package), model=b"\x08\x09"))
    with pytest.raises(PackageError, match="ONNX Runtime refuses it"):
        PortableStepModel(package)
