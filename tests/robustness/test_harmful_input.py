"""Fuzzing of every reader of external input, damage to every file that is read, and content made to do harm."""

import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from robustness import hostile
from robustness.fuzz import BATCH, TAKEN
from robustness.readers import READERS
from robustness.watched import FAILURES, Watched
from voxcpm_runtime.backends.portable.cache import load_lowered, write_entry
from voxcpm_runtime.backends.portable.package import (
    MODEL_FILE,
    PackageError,
    read_package,
    read_specification,
)
from voxcpm_runtime.backends.portable.step_model import PortableStepModel

SOME, INPUTS = 20, 10_000
"""Mutated inputs per reader, of `make test-robustness` and of `make torture`."""
AT_ONCE = 100
CORPUS = Path(__file__).with_name("corpus")


def _fuzz(process, name, first, count):
    """Failures for the inputs of `count` seeds."""
    counts = Counter()
    wrong = []
    slowest = 0.0
    for start in range(first, first + count, AT_ONCE):
        last = min(start + AT_ONCE, first + count) - 1
        ended = process.run({"reader": name, "first": start, "last": last})
        if ended.outcome == BATCH:
            found = json.loads(ended.detail)
            counts.update(found["counts"])
            wrong += [f"{name} {seed}: {outcome}: {detail}" for seed, outcome, detail in found["wrong"]]
            slowest = max(slowest, found["slowest"])
            continue
        # One of them crashed the process: rerun each alone to find it.
        for seed in range(start, last + 1):
            ended = process.run({"reader": name, "first": seed, "last": seed})
            counts[ended.outcome] += 1
            if ended.outcome in FAILURES:
                wrong.append(f"{name} {seed}: {ended.outcome}: {ended.detail}")
    print(f"{name}: {dict(counts)}, slowest {slowest:.3f} s")
    assert wrong or counts.total() == count, f"{counts.total()} of {count} inputs were read"
    return wrong


@pytest.fixture(scope="module")
def readers(speaking_bundle):
    """A process that has every reader."""
    with Watched("robustness.fuzz:scene", bundle=speaking_bundle) as process:
        yield process


@pytest.mark.parametrize("count", [SOME, pytest.param(INPUTS, marks=pytest.mark.torture)])
@pytest.mark.parametrize("name", READERS)
def test_mutated_inputs_are_rejected_or_accepted(name, count, readers, torture_seed, share):
    wrong = _fuzz(readers, name, torture_seed * 1_000_000, share(count))
    assert not wrong, f"{len(wrong)} inputs failed:\n" + "\n".join(wrong[:30])


def test_unmutated_inputs_are_accepted(readers):
    """A reader that rejected these would reject all mutated ones too, and test nothing."""
    for name in READERS:
        found = readers.run({"reader": name})
        assert found.outcome == BATCH, (name, found)
        assert json.loads(found.detail)["counts"].keys() == {TAKEN}, (name, found)


def test_regression_inputs(readers):
    found = sorted(CORPUS.glob("*.*.*"))
    assert len(found) > 5
    for path in found:
        content = path.read_bytes()
        is_edit = path.name.endswith(".edit.json")
        case = {"edit": json.loads(content)} if is_edit else {"content": content.hex()}
        ended = readers.run({"reader": path.name.partition(".")[0], **case})
        assert ended.outcome not in (*FAILURES, TAKEN), (path.name, ended)


def test_program_with_an_uncomputed_output(speaking_bundle, tmp_path):
    """It used to raise KeyError."""
    package = Path(shutil.copytree(speaking_bundle / "int8/feat_encoder.mlpackage", tmp_path / "x.mlpackage"))
    program = read_specification(package)
    (block,) = program.mlProgram.functions["main"].block_specializations.values()
    block.outputs[0] = "nothing"
    (package / MODEL_FILE).write_bytes(program.SerializeToString())
    with pytest.raises(PackageError, match=r"x.mlpackage is damaged.*KeyError: 'nothing'"):
        read_package(package)


def test_graph_rejected_by_onnx_runtime(speaking_bundle, tmp_path, monkeypatch):
    """A cache entry with a valid digest used to end in ONNX Runtime's traceback."""
    monkeypatch.setenv("VOXCPM_COREML_CACHE", str(tmp_path))
    package = speaking_bundle / "int8/feat_encoder.mlpackage"
    PortableStepModel(package)
    (entry,) = tmp_path.glob("lowered/*")
    write_entry(entry, replace(load_lowered(package), model=b"\x08\x09"))
    with pytest.raises(PackageError, match="ONNX Runtime rejects it"):
        PortableStepModel(package)


BUNDLES = {
    "bundle": ("speaking_bundle", "int8", 40, 430),
    "voice": ("speaking_bundle", "int8", 6, 130),
    "lowered": ("speaking_bundle", "int8", 2, 50),
    "verified": ("speaking_bundle", "int8", 2, 50),
    "segments": ("speaking_bundle", "int8", 5, 90),
    "bundle, macOS 27": ("tiny_bundle_27", "fp16", 0, 120),
}
CHECKPOINTS = {"safetensors": 80, "pickle": 80, "lora": 40}
PICKLES = {"model.safetensors": "pytorch_model.bin", "audiovae.safetensors": "audiovae.pth"}
"""Weight files and their names as pickles."""


def _check(count, seed, **given):
    with Watched("robustness.damage:scene", **given) as process:
        process.check({"number": number, "seed": seed} for number in range(count))


SOME = [(name, some) for name, (*_, some, _) in BUNDLES.items() if some]
ALL = [pytest.param(name, None, marks=pytest.mark.torture) for name in BUNDLES]


@pytest.mark.parametrize(("name", "some"), [*SOME, *ALL])
def test_damage(request, torture_seed, share, name, some):
    bundle, precision, _, count = BUNDLES[name]
    given = {
        "kind": name.partition(",")[0],
        "source": request.getfixturevalue(bundle),
        "precision": precision,
    }
    _check(some or share(count), torture_seed, **given)


@pytest.fixture(params=CHECKPOINTS)
def source(request, tiny_checkpoint, tmp_path, write_lora):
    """A checkpoint in that form, or a LoRA of one, as `scene` takes it."""
    import torch
    from safetensors.torch import load_file

    folder = tmp_path / request.param
    if request.param == "lora":
        write_lora(folder, tiny_checkpoint, enable_lm=True, enable_dit=True, r=2)
        return {"kind": "lora", "source": folder, "checkpoint": tiny_checkpoint}
    folder.mkdir()
    for path in tiny_checkpoint.iterdir():
        if request.param == "pickle" and path.name in PICKLES:
            torch.save({"state_dict": load_file(path)}, folder / PICKLES[path.name])
        else:
            (folder / path.name).write_bytes(path.read_bytes())
    return {"kind": "checkpoint", "source": folder}


@pytest.mark.parametrize("some", [4, pytest.param(None, marks=pytest.mark.torture)])
def test_damage_to_a_checkpoint(source, torture_seed, share, some):
    _check(some or share(CHECKPOINTS[source["source"].name]), torture_seed, **source)


def _check_hostile(names, **given):
    with Watched("robustness.hostile:scene", **given) as process:
        ended = {name: process.run(name) for name in names}
    print(ended)
    wrong = {name: end for name, end in ended.items() if end.outcome in (*FAILURES, hostile.READ)}
    assert not wrong, wrong


def test_hostile_bundles_and_voices(speaking_bundle):
    _check_hostile(hostile.BUNDLES, bundle=speaking_bundle)


def test_hostile_checkpoints(speaking_bundle, tiny_checkpoint):
    _check_hostile(hostile.CHECKPOINTS, bundle=speaking_bundle, checkpoint=tiny_checkpoint)
