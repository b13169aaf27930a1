import pytest
import yaml

from voxcpm_constants.architecture import Architecture
from voxcpm_constants.manifest import FileRecord, Manifest, MergedLora, Source
from voxcpm_constants.step_models import STEP_MODEL_NAMES, StepSizes, declare_step_models
from voxcpm_conversion.model_card import model_card, with_validation, write_model_card
from voxcpm_conversion.synthetic_presets import presets

LORA = MergedLora(name="my-voice", sha256="1" * 64, r=8, alpha=16, weights=3, modules=("base_lm.q_proj",))


def manifest(preset, **source):
    """The manifest of a published size, with files of 2 MB in fp16, 1 MB in int8 and 0.5 MB elsewhere."""
    architecture, sizes = Architecture.from_document(presets()[preset]), StepSizes()
    step_models = declare_step_models(architecture, sizes)
    sized = {f"{p}/{name}.mlpackage/w": n for p, n in (("fp16", 2), ("int8", 1)) for name in step_models}
    sized |= {"constants/config.json": 0.5, "tokenizer/tokenizer.json": 0.5}
    return Manifest(
        architecture=architecture,
        sizes=sizes,
        step_models=step_models,
        precisions=("fp16", "int8"),
        source=Source(sha256="0" * 64, **{"checkpoint": "openbmb/VoxCPM1.5", **source}),
        tools={"coremltools": "9.0"},
        files={
            name: FileRecord(bytes=int(megabytes * 1e6), sha256="0" * 64) for name, megabytes in sized.items()
        },
    )


def front_matter(card):
    return yaml.safe_load(card.split("---\n")[1])


def rows(card):
    """Cells of all rows of all tables by their first one."""
    cells = [
        [c.strip() for c in line.strip("|").split("|")] for line in card.splitlines() if line.startswith("|")
    ]
    return {first: rest for first, *rest in cells}


def test_front_matter_has_licence_task_library_and_base_model():
    found = front_matter(model_card(manifest("1.5", licence="CC0-1.0")))
    assert found == {
        "license": "cc0-1.0",
        "base_model": "openbmb/VoxCPM1.5",
        "library_name": "coreml",
        "pipeline_tag": "text-to-speech",
        "tags": ["coreml", "voxcpm", "fp16", "int8"],
    }
    assert "license" not in front_matter(model_card(manifest("1.5")))
    assert "base_model" not in front_matter(model_card(manifest("1.5", checkpoint="a-folder")))


def test_facts_match_the_manifest_and_sizes_are_sums():
    card = model_card(manifest("1.5", revision="abc", lora=LORA))
    found, count = rows(card), len(STEP_MODEL_NAMES)
    assert found["checkpoint"] == ["openbmb/VoxCPM1.5 at abc"]
    assert found["LoRA"] == ["my-voice (r 8, alpha 16), merged"]
    assert found["licence"] == ["not named by the checkpoint; ask its authors before you publish this"]
    # Published: 44.1 kHz, and 7056 samples in a patch.
    assert found["sample rates"] == ["recordings 44100 Hz, speech 44100 Hz"]
    assert found["one patch"] == ["160 ms of speech"]
    assert all(found[name] == ["2.0", "1.0"] for name in STEP_MODEL_NAMES)
    assert found["total"] == [f"{2 * count}.0", f"{count}.0"]
    assert "the constants and the tokenizer (1.0 MB)" in card


@pytest.mark.parametrize(
    ("preset", "missing", "seconds"), [("0.5b", True, 82), ("1.5", True, 164), ("2", False, 164)]
)
def test_unsupported_modes_and_the_longest_speech_are_named(preset, missing, seconds):
    card = model_card(manifest(preset))
    assert ("Not supported by this generation: voice design, style control, reference" in card) is missing
    assert f"1024 positions: {seconds} s of speech" in card


def test_validation_figures_replace_earlier_ones(tmp_path):
    write_model_card(tmp_path, manifest("1.5"))
    fresh = (tmp_path / "README.md").read_text()
    assert "Not validated yet" in fresh
    first = with_validation(fresh, "| a | 0.5 |\n")
    assert "| a |" in first
    assert with_validation(first, "| b | 0.9 |") == with_validation(fresh, "| b | 0.9 |")
    assert "Not validated" not in first
