import shutil

import pytest

from voxcpm_constants.manifest import package_path
from voxcpm_constants.step_models import AUDIO_VAE_DECODER, BASE_LM_STEP
from voxcpm_runtime.backends.portable.package import WEIGHT_FILE
from voxcpm_runtime.commands import cli
from voxcpm_validation.lint import checks
from voxcpm_validation.lint.bundle import lint_bundle

# Both structures, both targets and the optional forms.
BUNDLES = (
    "tiny_bundle", "tiny_bundle_15", "tiny_parts_bundle", "second_bundle", "speaking_bundle", "phone_bundle",
)  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("name", BUNDLES)
def test_fixture_bundles_have_no_findings(request, name):
    report = lint_bundle(str(request.getfixturevalue(name)))
    # The heads of the small checkpoints have 16 or 24 channels, and published ones 64 or 128.
    assert [row for row in report.rows() if row[0] != "state-size"] == []


def test_clean_bundle_prints_nothing(tiny_bundle, capsys):
    assert cli.main(["lint", str(tiny_bundle), "--precision", "fp16", "--precision", "int8"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["fp16", "int8"]
    assert all(line.endswith("operations: clean") for line in lines)


def test_findings_are_printed_as_a_table_with_exit_code_1(tiny_bundle, capsys, monkeypatch):
    monkeypatch.setattr(checks, "MAX_WEIGHT_FILE_BYTES", 1)
    monkeypatch.setenv("COLUMNS", "150")
    assert cli.main(["lint", str(tiny_bundle), "--precision", "fp16"]) == 1
    lines = capsys.readouterr().out.splitlines()
    (row,) = [line for line in lines if line.startswith("weight-file  ") and AUDIO_VAE_DECODER in line]
    assert "weight.bin" in row
    assert any(line.startswith("weight-file: ") and "0seba/VoxCPMANE 14" in line for line in lines)
    assert lines[-1].startswith("fp16: 6 packages, ")


def test_corrupt_package_is_named(tiny_bundle, tmp_path, refusal):
    folder = tmp_path / "damaged"
    shutil.copytree(tiny_bundle, folder, ignore=shutil.ignore_patterns("int8", "fp32"))
    path = folder / package_path("fp16", BASE_LM_STEP) / WEIGHT_FILE
    path.write_bytes(path.read_bytes()[:-1] + b"\xa5")
    assert f"{BASE_LM_STEP}.mlpackage" in refusal("lint", folder, "--precision", "fp16")
