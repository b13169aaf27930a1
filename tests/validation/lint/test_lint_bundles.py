"""The lint of whole bundles: those of the tests are clean, and the command says what is not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from voxcpm_constants.manifest import MANIFEST_FILE, Manifest, package_path
from voxcpm_constants.step_models import (
    AUDIO_VAE_DECODER,
    AUDIO_VAE_ENCODER,
    BASE_LM_STEP,
    LOCDIT_STEP,
    RESIDUAL_LM_STEP,
    StepSizes,
)
from voxcpm_runtime.backends.portable.package import MODEL_FILE, WEIGHT_FILE
from voxcpm_runtime.commands import cli
from voxcpm_validation.lint import interface, shapes
from voxcpm_validation.lint.bundle import lint_bundle, read_functions

# Every bundle that the tests convert: both structures, both targets and the optional forms.
BUNDLES = (
    "tiny_bundle",
    "tiny_bundle_15",
    "tiny_parts_bundle",
    "second_bundle",
    "speaking_bundle",
)
# What none of these has: VoxCPM2 in fp16 and int8 for macOS 15, and one key/value head with plain
# convolutions in the AudioVAE. Only the step models that this changes, each once: conversions take long.
SIZES = StepSizes(kv_length=128, prefill_chunks=(1, 16))
PACKAGES: dict[str, tuple[Any, ...]] = {
    "second-15": (
        "tiny-2",
        (BASE_LM_STEP, RESIDUAL_LM_STEP, LOCDIT_STEP),
        SIZES,
        ("fp16", "int8"),
        "macOS15",
    ),
    "unusual": (
        "tiny-kv",
        (BASE_LM_STEP, LOCDIT_STEP, AUDIO_VAE_ENCODER, AUDIO_VAE_DECODER),
        SIZES,
        ("fp16",),
    ),
}


@pytest.fixture(params=[*BUNDLES, *PACKAGES])
def bundle(request: pytest.FixtureRequest, some_packages: Callable[..., Path]) -> Path:
    if request.param in PACKAGES:
        return some_packages(request.param, *PACKAGES[request.param])
    folder: Path = request.getfixturevalue(request.param)
    return folder


@pytest.mark.long
def test_every_package_of_the_tests_is_clean(bundle: Path) -> None:
    report = lint_bundle(str(bundle))

    # The heads of the small checkpoints have 16 or 24 channels, and published ones 64 or 128.
    assert [row for row in report.rows() if row[0] != "state-size"] == []


@pytest.mark.long
def test_every_value_has_an_inferred_shape_at_each_length(bundle: Path) -> None:
    manifest = Manifest.read(bundle)
    for precision in manifest.precisions:
        for model in (part for name in manifest.step_models for part in manifest.parts(name)):
            for function in read_functions(bundle, manifest, precision, model):
                values = {name for name, kind, _ in function.values() if kind != "read_state"}
                assert len(function.lengths) == function.declared.chunk_count
                for length in function.lengths:
                    missing = values - length.shapes.keys() - {s.name for s in function.program.states}
                    assert not missing, (precision, model.name, length.label, missing)


def test_the_command_is_silent_about_a_clean_bundle(
    tiny_bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["lint", str(tiny_bundle), "--precision", "fp16", "--precision", "int8"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["fp16", "int8"]
    assert all(line.endswith("operations: clean") for line in lines)


def test_findings_are_a_table_and_exit_code_1(
    tiny_bundle: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interface, "LARGEST_WEIGHT_FILE", 1)
    monkeypatch.setenv("COLUMNS", "150")

    assert cli.main(["lint", str(tiny_bundle), "--precision", "fp16"]) == 1

    lines = capsys.readouterr().out.splitlines()
    (row,) = [line for line in lines if line.startswith("weight-file  ") and AUDIO_VAE_DECODER in line]
    assert "weight.bin" in row
    assert any(line.startswith("weight-file: ") and "0seba/VoxCPMANE 14" in line for line in lines)
    assert lines[-1].startswith("fp16: 6 packages, ")


def test_json_has_every_finding(
    tiny_bundle: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shapes, "LONGEST_AXIS", 100)

    assert cli.main(["lint", str(tiny_bundle), "--json"]) == 1

    document = json.loads(capsys.readouterr().out)
    assert document["clean"] is False
    assert list(document["precisions"]) == ["fp16", "int8", "fp32"]
    longest = [f for f in document["precisions"]["int8"]["findings"] if f["rule"] == "long-axis"]
    assert {"package", "function", "operation", "kind", "found", "expected", "why", "sources"} <= longest[
        0
    ].keys()
    assert {f["package"] for f in longest} >= {str(package_path("int8", AUDIO_VAE_DECODER))}


@pytest.fixture
def damaged(tiny_bundle: Path, tmp_path: Path) -> Path:
    """A copy of a bundle, to be damaged, with one precision."""
    folder = tmp_path / "damaged"
    shutil.copytree(tiny_bundle, folder, ignore=shutil.ignore_patterns("int8", "fp32"))
    return folder


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line with which a command refuses its input."""
    assert cli.main(["lint", *map(str, arguments)]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    (line,) = output.err.strip().splitlines()
    return line


def test_every_precision_that_is_asked_for_is_downloaded(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "downloaded"

    def download(_: str, allow_patterns: list[str]) -> str:
        folder.mkdir(exist_ok=True)
        shutil.copy(tiny_bundle / MANIFEST_FILE, folder)
        for name in (pattern.removesuffix("/**") for pattern in allow_patterns if pattern != MANIFEST_FILE):
            if (tiny_bundle / name).is_dir():  # the hub skips what matches nothing
                shutil.copytree(tiny_bundle / name, folder / name, dirs_exist_ok=True)
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)

    report = lint_bundle("someone/voice", ["int8", "fp16"])

    assert list(report.precisions) == ["int8", "fp16"]
    assert not (folder / "fp32").exists()


@pytest.mark.parametrize(
    ("file", "damage"), [(MODEL_FILE, "truncated"), (WEIGHT_FILE, "missing"), (WEIGHT_FILE, "altered")]
)
def test_a_damaged_package_is_refused_by_name(
    file: Path, damage: str, damaged: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = damaged / package_path("fp16", BASE_LM_STEP) / file
    content = path.read_bytes()
    path.unlink()
    if damage != "missing":
        path.write_bytes(content[: len(content) // 2] if damage == "truncated" else content[:-1] + b"\xa5")

    assert f"{BASE_LM_STEP}.mlpackage" in refused(capsys, damaged, "--precision", "fp16")
