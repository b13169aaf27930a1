import json
from importlib.metadata import version

import pytest

from voxcpm_runtime.commands import cli

pytest.importorskip("coreai", exc_type=ImportError)


@pytest.mark.usefixtures("own_compiled_27")
def test_every_step_model_is_correct_on_core_ai(tiny_bundle_27, capsys):
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
