"""`doctor` on a bundle for macOS 27: its test vectors against Apple's runtime, and no other unit."""

from __future__ import annotations

import json
import shutil
from importlib.metadata import version
from pathlib import Path

import pytest

from voxcpm_constants.manifest import Manifest, record_folder
from voxcpm_runtime.bundle.opening import open_bundle
from voxcpm_runtime.commands import cli
from voxcpm_runtime.doctor import examination

pytest.importorskip("coreai", exc_type=ImportError)


@pytest.mark.usefixtures("own_compiled_27")
def test_every_step_model_is_correct_on_core_ai(
    tiny_bundle_27: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = cli.main(["doctor", str(tiny_bundle_27), "--precision", "fp32", "--json"])

    out, error = capsys.readouterr()
    report = json.loads(out)
    assert (code, error) == (0, "")
    assert report["machine"]["libraries"]["coreai-core"] == version("coreai-core")
    assert {trial["unit"] for trial in report["trials"]} == {"coreai"}
    assert {trial["outcome"] for trial in report["trials"]} == {"correct"}
    assert report["chosen"] == dict.fromkeys(report["step_models"], "coreai")
    assert report["advice"] == ["Every step model is correct on Core AI."]
    # There is nothing to choose.
    assert not report["saved"]
    # The language models' caches are filled by `set_rows` for these.
    base = next(trial for trial in report["trials"] if trial["step_model"] == "base_lm_step")
    assert {"chain", "first_16", "last_1", "last_16"} == base["agreement"]["streams"].keys()
    assert base["agreement"]["state"] > 0.99999


@pytest.mark.usefixtures("own_compiled_27")
def test_a_program_of_a_newer_version_is_refused_and_the_others_are_tried(
    tiny_bundle_27: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "bundle"
    shutil.copytree(tiny_bundle_27, folder)
    metadata = folder / "fp32" / "feat_encoder.aimodel" / "metadata.json"
    metadata.write_text(metadata.read_text().replace('"2.0"', '"9.0"'))
    files = {path: record for path, record in record_folder(folder).items() if "/" in path}
    Manifest.read(folder).model_copy(update={"files": files}).write(folder)

    report = examination.examine(open_bundle(folder, "fp32"), "auto", limit=120)

    outcomes = {trial.step_model: trial.outcome for trial in report.trials}
    assert outcomes.pop("feat_encoder") == "refused"
    assert set(outcomes.values()) == {"correct"}
    assert any('Asset version "9.0" is not supported' in sentence for sentence in report.advice())
