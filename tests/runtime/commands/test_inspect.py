import json

from voxcpm_runtime.commands import cli


def inspected(folder, capsys, *options):
    assert cli.main(["inspect", str(folder), *options]) == 0
    return capsys.readouterr().out


def test_inspect_describes_a_bundle(bundle_folder, capsys, architecture):
    text = inspected(bundle_folder, capsys)
    facts = json.loads(inspected(bundle_folder, capsys, "--json", "--verify"))
    assert f"{architecture.output_sample_rate} Hz out" in text
    assert text.split()[:4] == [architecture.generation, "from", "tiny", "(no"]
    assert facts["architecture"] == architecture.generation
    assert facts["sizes"]["kv_length"] == 48
    assert facts["step_models"]["locdit_step"]["inputs"]["t_embedding"] == [2, 6, "float32"]
    # The package's only file contains its precision and its name.
    assert facts["step_models"]["locdit_step"]["bytes"] == {"fp16": 15, "int8": 15}
    assert set(facts["precisions"]) == {"fp16", "int8"}


def test_inspect_checks_every_file(bundle_folder, capsys, refusal):
    package = bundle_folder / "fp16" / "locdit_step.mlpackage" / "Manifest.json"
    package.write_text("x" * package.stat().st_size)
    inspected(bundle_folder, capsys)
    refusal("inspect", bundle_folder, "--verify")
    package.unlink()
    assert "locdit_step" in refusal("inspect", bundle_folder)
