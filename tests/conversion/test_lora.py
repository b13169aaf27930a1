"""A LoRA merged at conversion, compared with upstream layer by layer; `validation/test_lora.py` compares speech."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from voxcpm_constants.errors import CheckpointError
from voxcpm_conversion.checkpoint import Checkpoint
from voxcpm_conversion.lora import LoraConfig
from voxcpm_validation.upstream import import_upstream, load_upstream

Q = "base_lm.layers.0.self_attn.q_proj"
ALL = {"enable_lm": True, "enable_dit": True, "enable_proj": True}


@pytest.fixture(scope="module")
def attention(tmp_path_factory, tiny_checkpoint, write_lora):
    """A LoRA of the "tiny" checkpoint: upstream's default layers of LMs and DiT, r 8 and alpha 16."""
    folder = tmp_path_factory.mktemp("lora") / "attention"
    return write_lora(folder, tiny_checkpoint, enable_lm=True, enable_dit=True)


@pytest.fixture
def copy(attention, tmp_path):
    return shutil.copytree(attention, tmp_path / "copy")


def open_on(checkpoint, lora):
    opened = Checkpoint.open(checkpoint, lora=lora).lora
    assert opened is not None
    return opened


def edit_weights(folder, edit):
    weights = load_file(folder / "lora_weights.safetensors")
    edit(weights)
    save_file(weights, folder / "lora_weights.safetensors")


def edit_config(folder, **changes):
    path = folder / "lora_config.json"
    document = json.loads(path.read_text())
    document["lora_config"] |= changes
    path.write_text(json.dumps(document))


def lora_layers(model):
    """Upstream's layers whose LoRA changes their result."""
    return {n: m for n, m in model.named_modules() if type(m).__name__ == "LoRALinear" and m.lora_B.any()}


def assert_same_as_upstream(checkpoint, lora):
    """Check that merged layers compute what upstream's LoRALinear does, and that all other weights are unchanged.

    Returns the names of the merged layers.
    """
    merged, base = Checkpoint.open(checkpoint, lora=lora), Checkpoint.open(checkpoint)
    layers = lora_layers(load_upstream(checkpoint, max_length=64, lora=merged.lora))
    generator = torch.Generator().manual_seed(1)
    for name, layer in layers.items():
        x = torch.randn(5, layer.in_features, generator=generator)
        with torch.inference_mode():
            expected, without = layer(x), torch.nn.functional.linear(x, layer.weight, layer.bias)
            found = torch.nn.functional.linear(x, merged.tensor(f"{name}.weight"), layer.bias)
        assert (expected - without).std() > 0.1 * without.std(), name
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))
    for name in merged.shapes():
        if name.removesuffix(".weight") not in layers:
            assert torch.equal(merged.tensor(name), base.tensor(name)), name
    record = merged.source().lora
    assert record is not None
    assert record.weights == len(layers) > 0
    return sorted(layers)


@pytest.mark.parametrize("form", ["safetensors", "ckpt"])
def test_merged_weights_equal_upstream(any_checkpoint, tmp_path, write_lora, form):
    lora = write_lora(tmp_path / "lora", any_checkpoint, form, **ALL, r=4, alpha=12)
    layers = assert_same_as_upstream(any_checkpoint, lora)
    record = Checkpoint.open(any_checkpoint, lora=lora).source().lora
    assert (record.name, record.r, record.alpha) == ("lora", 4, 12)
    second = "fusion_concat_proj" in layers
    assert second == ("2" in any_checkpoint.name.removeprefix("checkpoint-tiny"))
    projections = {"enc_to_lm_proj", "lm_to_dit_proj", "res_to_dit_proj"} | (
        {"fusion_concat_proj"} if second else set()
    )
    parts = ("base_lm", "residual_lm", "feat_decoder")
    attention = {f"{part}.{kind}_proj" for part in parts for kind in "qkvo"}
    assert set(record.modules) == attention | projections


@pytest.fixture(scope="module")
def everywhere(tmp_path_factory, second_checkpoint, write_lora):
    """A LoRA of a VoxCPM2 checkpoint, with weights for linear layers of every kind."""
    stack = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    dit = [*stack, "in_proj", "cond_proj", "out_proj", "linear_1", "linear_2"]
    projections = ["enc_to_lm_proj", "lm_to_dit_proj", "fusion_concat_proj", "stop_proj", "stop_head"]
    targets = {"target_modules_lm": stack, "target_modules_dit": dit, "target_proj_modules": projections}
    folder = write_lora(tmp_path_factory.mktemp("lora") / "lora", second_checkpoint, **ALL, **targets)
    a, b = torch.full((8, 64), 0.1), torch.full((128, 8), 0.1)
    edit_weights(folder, lambda w: w.update({"fsq_layer.in_proj.lora_A": a, "fsq_layer.in_proj.lora_B": b}))
    return folder


# Upstream matches LMs and DiT by the last part of a name, and projections as attributes of the model itself.
@pytest.mark.parametrize(
    ("config", "chosen"),
    [
        ({"enable_lm": True, "target_modules_lm": ["gate_proj", "down_proj", "self_attn.q_proj"]}, 2 * 3),
        ({"enable_dit": True, "target_modules_dit": ["in_proj", "linear_1", "up_proj"]}, 2 + 1 + 2),
        ({"enable_proj": True, "target_proj_modules": ["stop_head", "fsq_layer.in_proj", "in_proj"]}, 1),
        ({**ALL, "target_modules_lm": [], "target_modules_dit": ["o_proj"], "dropout": 0.5}, 2 + 3),
    ],
    ids=["lm", "dit", "projections", "all"],
)
def test_layers_equal_upstreams_choice(second_checkpoint, everywhere, tmp_path, config, chosen):
    lora = shutil.copytree(everywhere, tmp_path / "lora")
    (lora / "lora_config.json").write_text(json.dumps({"lora_config": config}))
    assert len(assert_same_as_upstream(second_checkpoint, lora)) == chosen


def test_layers_not_enabled_in_the_config_are_skipped_with_a_warning(tiny_checkpoint, copy):
    assert open_on(tiny_checkpoint, copy).remarks() == []
    edit_config(copy, enable_dit=False, target_modules_lm=["q_proj", "o_proj"], use_dora=True)
    layers = assert_same_as_upstream(tiny_checkpoint, copy)
    assert {layer.rpartition(".")[2] for layer in layers} == {"q_proj", "o_proj"}
    unknown, remark = open_on(tiny_checkpoint, copy).remarks()
    assert unknown == "lora_config.json: ignored unknown keys use_dora"
    assert "skipped base_lm.layers.0.self_attn.k_proj and 13 more" in remark


@pytest.mark.parametrize("rename", ["voice.safetensors", "voice.pth"])
def test_weight_file_alone_is_accepted(tiny_checkpoint, copy, rename):
    weights, file = load_file(copy / "lora_weights.safetensors"), copy / rename
    save_file(weights, file) if file.suffix == ".safetensors" else torch.save(weights, file)
    (copy / "lora_weights.safetensors").unlink()
    edit_config(copy, alpha=40)
    record = Checkpoint.open(tiny_checkpoint, lora=file).source().lora
    assert (record.name, record.alpha) == (rename, 40)
    assert_same_as_upstream(tiny_checkpoint, file)


def test_defaults_equal_upstreams(attention):
    upstream = import_upstream()
    ours = LoraConfig().model_dump()
    assert attention.is_dir()
    for model, extra in (
        (upstream.core.VoxCPMModel, ["fusion_concat_proj"]),
        (upstream.core.VoxCPM2Model, []),
    ):
        theirs = sys.modules[model.__module__].LoRAConfig().model_dump()
        theirs["target_proj_modules"] += extra
        assert {key: list(v) if isinstance(v, tuple) else v for key, v in ours.items()} == theirs


def replace(name, *shape):
    return lambda folder: edit_weights(folder, lambda w: w.update({name: torch.zeros(shape)}))


def write(name, text):
    return lambda folder: (folder / name).write_text(text)


def remove(name):
    return lambda folder: (folder / name).unlink()


def without_config(damage):
    return lambda folder: (remove("lora_config.json")(folder), damage(folder))


WEIGHTS = "lora_weights.safetensors"
RANK_16_A = replace(f"{Q}.lora_A", 16, 64)


@pytest.mark.parametrize(
    ("damage", "fragment"),
    [
        (remove(WEIGHTS), "expected a LoRA, lora_weights.safetensors, lora_weights.ckpt, adapter_model"),
        (write("lora_config.json", '{"r": 8}'), "expected upstream's layout, an object lora_config"),
        (lambda folder: edit_config(folder, r=0), "lora_config.r: Input should be greater than 0"),
        (RANK_16_A, f"expected {Q}.lora_A of shape (8, 64) (r 8, of lora_config.json), found (16, 64)"),
        (without_config(RANK_16_A), "of shape (8, 64) (r 8, of its first layer), found (16, 64)"),
        (lambda folder: edit_weights(folder, lambda w: w.pop(f"{Q}.lora_B")), f"{Q}.lora_B of shape (64, 8)"),
        (lambda folder: edit_weights(folder, dict.clear), "found no weights"),
        (lambda folder: edit_config(folder, enable_lm=False, enable_dit=False), "that lora_config.json enables"),
        (replace("fusion_concat_proj.lora_A", 8, 64), "fusion_concat_proj.lora_A; it was trained on openbmb/VoxCPM1.5"),
    ],
)  # fmt: skip
def test_mismatched_lora_is_a_one_line_error(tiny_checkpoint, copy, damage, fragment):
    damage(copy)
    with pytest.raises(CheckpointError) as caught:
        Checkpoint.open(tiny_checkpoint, lora=copy)
    assert fragment in str(caught.value)


def test_rank_defaults_to_that_of_the_weights(tiny_checkpoint, tmp_path, write_lora):
    lora = write_lora(tmp_path / "lora", tiny_checkpoint, enable_lm=True, enable_dit=True, r=32)
    (lora / "lora_config.json").unlink()
    opened = open_on(tiny_checkpoint, lora)
    assert (opened.config.r, opened.config.alpha) == (32, 16)
    (remark,) = opened.remarks()
    assert "no lora_config.json next to it; using upstream's alpha 16, and r 32 from the weights" in remark
    assert_same_as_upstream(tiny_checkpoint, lora)


def rename_keys(folder, rename):
    weights = load_file(folder / WEIGHTS)
    save_file({rename(key): tensor for key, tensor in weights.items()}, folder / WEIGHTS)


def as_peft(folder, **settings):
    rename_keys(folder, lambda key: f"base_model.model.{key}.weight")
    (folder / WEIGHTS).rename(folder / "adapter_model.safetensors")
    (folder / "lora_config.json").unlink()
    document = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "base_model_name_or_path": "openbmb/VoxCPM1.5"}
    (folder / "adapter_config.json").write_text(json.dumps(document | settings))


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: rename_keys(folder, lambda key: key.replace("base_lm.", "base_lm._orig_mod.")),
        lambda folder: rename_keys(folder, lambda key: f"_orig_mod.module.tts_model.{key}"),
        as_peft,
    ],
)
def test_names_of_wrappers_and_pefts_form_give_the_same_weights(tiny_checkpoint, attention, copy, change):
    change(copy)
    plain, changed = (Checkpoint.open(tiny_checkpoint, lora=lora) for lora in (attention, copy))
    assert changed.lora.remarks() == []
    for name in plain.shapes():
        assert torch.equal(plain.tensor(name), changed.tensor(name)), name


@pytest.mark.parametrize(
    "settings", [{"use_dora": True}, {"peft_type": "LOHA"}, {"rank_pattern": {"q_proj": 4}}]
)
def test_other_forms_of_peft_are_refused(tiny_checkpoint, copy, settings):
    as_peft(copy, **settings)
    with pytest.raises(CheckpointError, match=rf"adapter_config.json: .* found {next(iter(settings))} "):
        Checkpoint.open(tiny_checkpoint, lora=copy)


def test_hub_id_is_downloaded_and_a_run_is_opened_at_its_latest_checkpoint(
    tiny_checkpoint, attention, tmp_path, monkeypatch
):
    asked = []

    def download(repository, *, allow_patterns, **_):
        asked.append(
            (repository, {WEIGHTS, "lora_config.json", "adapter_config.json"} <= set(allow_patterns))
        )
        return str(attention)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    monkeypatch.chdir(tmp_path)
    assert open_on(tiny_checkpoint, Path("someone/voice")).record().name == "someone/voice"
    assert asked == [("someone/voice", True)]
    # Checkpoints of a run mean the latest.
    (tmp_path / "step_0001000").mkdir()
    shutil.copytree(attention, tmp_path / "latest")
    assert open_on(tiny_checkpoint, tmp_path).weights == tmp_path / "latest" / WEIGHTS
