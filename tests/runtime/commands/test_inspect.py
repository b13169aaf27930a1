import json

from voxcpm_constants.manifest import Manifest
from voxcpm_constants.speech_profile import SpeechProfile
from voxcpm_runtime.commands import cli


def inspected(folder, capsys, *options):
    assert cli.main(["inspect", str(folder), *options]) == 0
    return capsys.readouterr().out


def test_inspect_tells_what_a_bundle_is(bundle_folder, capsys, architecture, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = inspected(bundle_folder, capsys)
    facts = json.loads(inspected(bundle_folder, capsys, "--json", "--verify"))

    assert f"{architecture.output_sample_rate} Hz out" in text
    assert max(map(len, text.splitlines())) <= 80
    assert text.split()[:4] == [architecture.generation, "from", "tiny", "(no"]
    assert facts["architecture"] == architecture.generation
    assert facts["sizes"]["kv_length"] == 48
    assert facts["step_models"]["locdit_step"]["inputs"]["t_embedding"] == [2, 6, "float32"]
    # The package's only file contains its precision and its name.
    assert facts["step_models"]["locdit_step"]["bytes"] == {"fp16": 15, "int8": 15}
    assert set(facts["precisions"]) == {"fp16", "int8"}


def test_inspect_looks_at_every_file(bundle_folder, capsys):
    (bundle_folder / "fp16" / "locdit_step.mlpackage" / "Manifest.json").unlink()

    assert cli.main(["inspect", str(bundle_folder)]) == 2
    assert "locdit_step" in capsys.readouterr().err


def test_the_utterances_of_a_speech_json_are_shown(bundle_folder, capsys):
    assert json.loads(inspected(bundle_folder, capsys, "--json"))["speech"] is None
    profile = SpeechProfile(longest_seconds=20, longest_tokens=240, seconds_per_letter=0.06)
    Manifest.read(bundle_folder).model_copy(update={"speech": profile}).write(bundle_folder)

    shown = inspected(bundle_folder, capsys)

    assert json.loads(inspected(bundle_folder, capsys, "--json"))["speech"]["longest_tokens"] == 240
    assert "up to 20 s or 240 tokens; expected: 0 s and 60 ms a letter" in " ".join(shown.split())
