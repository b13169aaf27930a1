import json

import pytest

from voxcpm_constants.architecture import Architecture
from voxcpm_constants.manifest import FileRecord, Manifest, MergedLora, Source
from voxcpm_constants.step_models import StepSizes, declare_step_models
from voxcpm_runtime.commands import cli

MEGABYTES = {"fp16": 2656.4, "int8": 1330.0, "fp32": 5312.6, "int4": 748.1}


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


def test_inspect_checks_every_file(bundle_folder, capsys):
    package = bundle_folder / "fp16" / "locdit_step.mlpackage" / "Manifest.json"
    package.write_text("x" * package.stat().st_size)
    assert cli.main(["inspect", str(bundle_folder)]) == 0
    assert cli.main(["inspect", str(bundle_folder), "--verify"]) == 2
    package.unlink()
    assert cli.main(["inspect", str(bundle_folder)]) == 2
    assert "locdit_step" in capsys.readouterr().err


def test_a_real_bundle_fits_eighty_columns_without_losing_a_word(real_size, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")

    text = inspected(real_size, capsys)

    assert max(map(len, text.splitlines())) <= 80
    for name in ("audio_vae_encoder", "base_lm_step", "residual_lm_step", "locdit_step"):
        assert rows(text, name) == [[name, "2656.4", "1330.0", "5312.6", "748.1"]]
    assert ["out", "stop_logits", "1×1|16|64×2", "float32"] in rows(text, "out")
    assert ["in", "embeddings", "1×1|16|64×2048", "float32"] in rows(text, "in")
    assert ["in", "position", "1", "int32"] in rows(text, "in")
    assert ["state", "56", "tensors", "1×2×8192×128", "compute"] in rows(text, "state")
    assert rows(text, "lora") == [
        ["lora", "name", "my-voice,", "sha256", "1" * 16 + "…,", "r", "8,", "alpha", "16,", "weights", "24,"]
    ]
    assert rows(text, "revision") == [["revision", "abc"]]
    target = Manifest.read(real_size).target
    system = {"macOS14": ["macOS", "14,", "iOS", "17"], "macOS15": ["macOS", "15,", "iOS", "18"]}[target]
    assert rows(text, "target") == [["target", *system]]
    # Only for macOS 15 do the LM steps have a function for each length.
    functions = [name for _, name in rows(text, "func")]
    assert functions == (["decode", "prefill_16", "prefill_64"] * 2 if target == "macOS15" else [])


def rows(text, first_word):
    return [line.split() for line in text.splitlines() if line.split()[:1] == [first_word]]


@pytest.fixture(params=["macOS14", "macOS15"])
def real_size(tmp_path, architecture, request):
    """A bundle of VoxCPM2's widths in all precisions, whose files are sparse and of the right length."""
    document = architecture.model_dump(mode="json", exclude_none=True, by_alias=True)
    document["lm_config"] |= {
        "hidden_size": 2048,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "kv_channels": 128,
    }
    document["audio_vae_config"] |= {"encoder_dim": 128, "latent_dim": 64, "decoder_dim": 2048}
    document |= {"feat_dim": 64, "patch_size": 4, "residual_lm_num_layers": 8}
    large = Architecture.model_validate(document)
    step_models = declare_step_models(large, StepSizes(kv_length=8192))
    files = {}
    for precision, size in MEGABYTES.items():
        for name in step_models:
            path = tmp_path / precision / f"{name}.mlpackage" / "weight.bin"
            path.parent.mkdir(parents=True)
            with path.open("wb") as file:
                file.truncate(round(size * 1e6))
            files[path.relative_to(tmp_path).as_posix()] = FileRecord(
                bytes=round(size * 1e6), sha256="0" * 64
            )
    lora = MergedLora(
        name="my-voice", sha256="1" * 64, r=8, alpha=16, weights=24, modules=("base_lm.q_proj",)
    )
    Manifest(
        architecture=large,
        sizes=StepSizes(kv_length=8192),
        step_models=step_models,
        precisions=tuple(MEGABYTES),
        target=request.param,
        source=Source(checkpoint="openbmb/VoxCPM", revision="abc", sha256="2" * 64, lora=lora),
        tools={"coremltools": "9.0", "torch": "2.13.0+cpu", "numpy": "2.4.6", "voxcpm-coreml": "0.1.0"},
        files=files,
    ).write(tmp_path)
    return tmp_path
