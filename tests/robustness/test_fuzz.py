"""Changed inputs for every reader of what comes from outside: 10,000 each where a reader is quick."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from robustness.fuzz import BATCH, TARGETS
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

EACH = 10_000
# A program is read in tens of milliseconds, and a manifest, a text and a form in several.
FEWER = {"package": 1_000, "weight.bin": 2_000, "manifest": 5_000, "text": 5_000}
SOME = 200
SOME_OF = {"package": 60, "weight.bin": 60, "manifest": 100, "text": 100}
_AT_ONCE = 100

CORPUS = Path(__file__).with_name("corpus")


def _fuzz(process: Watched, target: str, first: int, count: int) -> tuple[Counter[str], list[str], float]:
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    slowest = 0.0
    for start in range(first, first + count, _AT_ONCE):
        several = min(_AT_ONCE, first + count - start)
        ended = process.run({"target": target, "first": start, "count": several})
        if ended.outcome == BATCH:
            found = json.loads(ended.detail)
            counts.update(found["counts"])
            wrong += [f"{target} {seed}: {outcome}: {detail}" for seed, outcome, detail in found["wrong"]]
            slowest = max(slowest, found["slowest"][0])
            continue
        # One of them ended the process: which one, and how, each tells alone.
        for seed in range(start, start + several):
            ended = process.run({"target": target, "first": seed, "count": 1})
            counts[ended.outcome] += 1
            if ended.outcome in FAILURES:
                wrong.append(f"{target} {seed}: {ended.outcome}: {ended.detail}")
    return counts, wrong, slowest


@pytest.mark.torture
@pytest.mark.parametrize("target", TARGETS)
def test_changed_inputs_are_refused_or_taken(
    target: str, speaking_bundle: Path, totals: Totals, torture_seed: int
) -> None:
    with watched("robustness.fuzz:scene", bundle=speaking_bundle) as process:
        counts, wrong, slowest = _fuzz(process, target, torture_seed * 1_000_000, FEWER.get(target, EACH))
    totals.record("Fuzz", target, counts, slowest_seconds=round(slowest, 3))
    assert not wrong, f"{len(wrong)} inputs failed:\n" + "\n".join(wrong[:30])


def test_some_changed_inputs(speaking_bundle: Path, totals: Totals, torture_seed: int) -> None:
    every: list[str] = []
    with watched("robustness.fuzz:scene", bundle=speaking_bundle) as process:
        for target in TARGETS:
            count = SOME_OF.get(target, SOME)
            counts, wrong, slowest = _fuzz(process, target, torture_seed * 1_000_000, count)
            totals.record("Fuzz", f"{target}, some", counts, slowest_seconds=round(slowest, 3))
            every += wrong
    assert not every, f"{len(every)} inputs failed:\n" + "\n".join(every[:30])


@pytest.mark.parametrize("path", sorted(CORPUS.glob("tokenizer_config.*.json")), ids=lambda path: path.name)
def test_tokenizers_that_once_failed(path: Path, tmp_path: Path) -> None:
    from voxcpm_conversion.synthetic_presets import write_tokenizer

    write_tokenizer(tmp_path)
    shutil.copy(path, tmp_path / "tokenizer_config.json")
    with pytest.raises(BundleError, match="not a tokeniser file"):
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
