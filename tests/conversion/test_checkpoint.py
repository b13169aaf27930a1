import json
import shutil
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from voxcpm_constants.errors import CheckpointError
from voxcpm_conversion.checkpoint import Checkpoint
from voxcpm_conversion.modules.voxcpm import check_weights

NORM = "base_lm.norm.weight"


@pytest.fixture
def copy(tiny_checkpoint, tmp_path):
    return shutil.copytree(tiny_checkpoint, tmp_path / "copy")


def model_weights(folder):
    return load_file(folder / "model.safetensors")


def as_pickle(folder, wrap):
    torch.save(wrap(model_weights(folder)), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def open_and_check(folder):
    checkpoint = Checkpoint.open(folder)
    check_weights(checkpoint.shapes(), checkpoint.architecture)


def one_line_error(folder, fragment):
    with pytest.raises(CheckpointError) as caught:
        open_and_check(folder)
    assert fragment in str(caught.value)


@pytest.mark.parametrize(
    "wrap",
    [
        pytest.param(lambda t: t, id="bare"),
        pytest.param(lambda t: {"model": {"module": t}, "optimizer": {}}, id="model of module"),
        pytest.param(
            lambda t: {"state_dict": {f"module._orig_mod.{k}": v for k, v in t.items()}}, id="both prefixes"
        ),
    ],
)
def test_pickled_containers_and_prefixes_give_the_same_weights(tiny_checkpoint, copy, wrap):
    as_pickle(copy, wrap)
    assert Checkpoint.open(copy).shapes() == Checkpoint.open(tiny_checkpoint).shapes()
    assert torch.equal(Checkpoint.open(copy).tensor(NORM), model_weights(tiny_checkpoint)[NORM])


def test_shards_give_the_same_weights(tiny_checkpoint, copy):
    weights = model_weights(copy)
    names = sorted(weights)
    owner = {name: f"model-0000{1 + index % 2}-of-00002.safetensors" for index, name in enumerate(names)}
    for file in set(owner.values()):
        save_file({name: weights[name] for name in names if owner[name] == file}, copy / file)
    (copy / "model.safetensors").unlink()
    (copy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": owner}))
    assert Checkpoint.open(copy).shapes() == Checkpoint.open(tiny_checkpoint).shapes()
    assert torch.equal(Checkpoint.open(copy).tensor(names[1]), weights[names[1]])
    elsewhere = {name: f"../{copy.name}/{file}" for name, file in owner.items()}
    (copy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": elsewhere}))
    one_line_error(copy, f"../{copy.name}/{owner[names[0]]}")
    (copy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": owner}))
    (copy / owner[names[0]]).unlink()
    one_line_error(copy, owner[names[0]])


@pytest.mark.parametrize(
    ("magnitude", "direction"),
    [("weight_g", "weight_v"), ("parametrizations.weight.original0", "parametrizations.weight.original1")],
)
def test_both_weight_norm_layouts_are_read(copy, magnitude, direction):
    path = copy / "audiovae.safetensors"
    weights = load_file(path)
    convolution = nn.ConvTranspose1d(64, 32, 14, stride=7)
    normed = torch.nn.utils.parametrizations.weight_norm(convolution)
    g, v = (normed.state_dict()[f"parametrizations.weight.original{index}"] * 3 for index in (0, 1))
    stem = "decoder.model.2.block.1"
    del weights[f"{stem}.weight_g"], weights[f"{stem}.weight_v"]
    save_file({**weights, f"{stem}.{magnitude}": g, f"{stem}.{direction}": v}, path)
    tensor = Checkpoint.open(copy).tensor(f"audio_vae.{stem}.weight")
    torch.testing.assert_close(tensor, 3 * normed.weight.detach(), rtol=1e-6, atol=1e-7)


class Payload:
    """An object that runs code when it is unpickled."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return exec, (f"open({str(self.trace)!r}, 'w').close()",)


def test_mismatched_weights_are_named(copy):
    weights = model_weights(copy)
    weights["base_lm.norm.wait"] = weights.pop(NORM)
    weights["stop_head.weight"] = torch.zeros(3, 64)
    weights["base_lm.rope_emb.inv_freq"] = torch.ones(8)  # a buffer, which is accepted
    save_file(weights, copy / "model.safetensors")
    vae = load_file(copy / "audiovae.safetensors")
    del vae["encoder.fc_mu.weight_g"]
    save_file(vae, copy / "audiovae.safetensors")
    one_line_error(copy, "2 missing: audio_vae.encoder.fc_mu.weight (16, 64, 3), base_lm.norm.weight (64,)")
    one_line_error(
        copy, "2 unexpected: audio_vae.encoder.fc_mu.weight_v (16, 64, 3), base_lm.norm.wait (64,)"
    )
    one_line_error(copy, "1 of another shape: stop_head.weight (expected (2, 64), found (3, 64))")
    weights["base_lm.layers.0.self_attn.q_proj.lora_A"] = torch.zeros(8, 64)
    save_file(weights, copy / "model.safetensors")
    one_line_error(copy, "pass the LoRA in its own folder with --lora")


def remove(name):
    return lambda folder: (folder / name).unlink()


def truncate(name):
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-100])


def llama(folder):
    (folder / "config.json").write_text(
        json.dumps({"architectures": ["LlamaForCausalLM"], "hidden_size": 64})
    )


def infinite(folder):
    config = json.loads((folder / "config.json").read_text())
    config["lm_config"]["rms_norm_eps"] = float("inf")
    (folder / "config.json").write_text(json.dumps(config))


def test_missing_folder_is_looked_up_on_the_hub(tiny_checkpoint, tmp_path, monkeypatch):
    one_line_error(tmp_path / "absent", "no such checkpoint")
    asked = []

    def offline(repository, *, revision, allow_patterns, **_):
        asked.append((repository, revision, "model.safetensors" in allow_patterns))
        raise ConnectionError("no network\nand a second line")

    monkeypatch.setattr("huggingface_hub.snapshot_download", offline)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match=r"^openbmb/none at main: .*\(no network\)$"):
        Checkpoint.open("openbmb/none", revision="main")
    assert asked == [("openbmb/none", "main", True)]
    snapshot = shutil.copytree(tiny_checkpoint, tmp_path / "snapshots" / "0123abcd")
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(snapshot))
    source = Checkpoint.open("openbmb/VoxCPM1.5").source()
    assert (source.checkpoint, source.revision) == ("openbmb/VoxCPM1.5", "0123abcd")


PROFILE = {"longest_seconds": 6, "longest_tokens": 80, "seconds_per_letter": 0.06, "licence": "CC0-1.0"}


@pytest.mark.parametrize(
    ("card", "licence"),
    [
        ("---\ntags:\n- x\nlicense: apache-2.0\n---\n# A voice\n", "apache-2.0"),
        ("---\nlicense: 'cc-by-4.0'\n---\n", "cc-by-4.0"),
        ("---\ntags: []\n---\nlicense: mit\n", ""),
    ],
)
def test_licence_comes_from_the_checkpoints_card(copy, card, licence):
    (copy / "README.md").write_text(card)
    assert Checkpoint.open(copy).source().licence == licence
    (copy / "speech.json").write_text(json.dumps(PROFILE))
    checkpoint = Checkpoint.open(copy)
    assert checkpoint.speech is not None
    assert (checkpoint.speech.longest_tokens, checkpoint.speech.expected_seconds(50)) == (80, 3.0)
    assert checkpoint.source().licence == "CC0-1.0"


def test_invalid_speech_json_is_a_one_line_error(copy):
    for wrong, reason in (
        ({"longest_tokens": 7}, "longest_tokens: Input should be greater than or equal to 8"),
        ({"longest_seconds": 0.4}, "the file: Value error, longest_seconds is 0.4, but by the other fields"),
        ({"longest_second": 6}, "longest_second: Extra inputs are not permitted"),
    ):
        (copy / "speech.json").write_text(json.dumps(PROFILE | wrong))
        one_line_error(copy, f"speech.json: not a speech.json: {reason}")


def with_vae_inside(folder, prefix=""):
    vae = load_file(folder / "audiovae.safetensors")
    weights = {**model_weights(folder), **{f"audio_vae.{name}": tensor for name, tensor in vae.items()}}
    save_file({prefix + name: tensor for name, tensor in weights.items()}, folder / "model.safetensors")
    (folder / "audiovae.safetensors").unlink()


@pytest.mark.parametrize("prefix", ["", "model.", "tts_model."])
def test_audio_vae_inside_the_models_file(tiny_checkpoint, copy, prefix):
    with_vae_inside(copy, prefix)
    open_and_check(copy)
    name = "audio_vae.decoder.model.2.block.1.weight"
    assert torch.equal(Checkpoint.open(copy).tensor(name), Checkpoint.open(tiny_checkpoint).tensor(name))


def mlx(folder):
    config = json.loads((folder / "config.json").read_text())
    quantization = {"group_size": 64, "bits": 4}
    (folder / "config.json").write_text(json.dumps({**config, "quantization": quantization}))
    (folder / "README.md").write_text("---\nlicense: apache-2.0\nbase_model:\n- openbmb/VoxCPM1.5\n---\n")


def integers(*more):
    def damage(folder):
        weights = model_weights(folder)
        weights["stop_proj.weight"] = torch.ones(64, 64, dtype=torch.int8)
        weights |= dict.fromkeys(more, torch.ones(64))
        save_file(weights, folder / "model.safetensors")

    return damage


def replace_weights(content):
    return lambda folder: (folder / "model.safetensors").write_bytes(content)


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 1234567890\n"


@pytest.mark.parametrize(
    ("damage", "fragment"),
    [
        (remove("config.json"), "no config.json"),
        (remove("tokenizer.json"), "no tokenizer.json"),
        (remove("audiovae.safetensors"), "expected audiovae.safetensors or audiovae.pth"),
        (truncate("model.safetensors"), "model.safetensors: expected a safetensors file"),
        (llama, "not the config.json of a VoxCPM checkpoint"),
        (infinite, "lm_config.rms_norm_eps: Input should be a finite number"),
        (lambda folder: as_pickle(folder, lambda t: {"epoch": 3}), "'epoch' is a int, not a tensor"),
        (mlx, "this is MLX's 4-bit form of openbmb/VoxCPM1.5; convert openbmb/VoxCPM1.5"),
        (integers("stop_proj.scales"), "this is MLX's quantised form of another checkpoint"),
        (integers(), "stop_proj.weight and 0 more are integers, of a quantised form; convert the checkpoint"),
        (replace_weights(POINTER), "this is a Git LFS pointer, not the weights themselves"),
        (replace_weights(b"\n<!DOCTYPE html>\n<html>"), "model.safetensors: this is a web page, not weights"),
    ],
)
def test_invalid_checkpoint_is_a_one_line_error(copy, damage, fragment):
    damage(copy)
    one_line_error(copy, fragment)


def test_pickle_with_foreign_objects_gets_no_advice_to_load_it_anyway(copy, tmp_path):
    as_pickle(copy, lambda weights: {"state_dict": weights, "args": Payload(tmp_path / "ran")})
    with pytest.raises(CheckpointError, match=r"objects such as \S*exec; .* state dict") as caught:
        Checkpoint.open(copy)
    assert "weights_only" not in str(caught.value)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("edit", "fragment"),
    [
        (lambda tree: tree.pop("model.safetensors"), "expected model.safetensors or"),
        (lambda tree: tree.pop("config.json"), "it has no config.json"),
        (lambda tree: tree.update({"model.safetensors": POINTER}), "expected weights in model.safetensors, but it has"),
        (lambda tree: tree.update({"config.json": b'{"quantization": {"bits": 8}}'}), "this is MLX's 8-bit form"),
    ],
)  # fmt: skip
def test_hubs_list_of_files_is_checked_before_weights_are_downloaded(
    copy, tmp_path, monkeypatch, edit, fragment
):
    tree = {path.name: path.read_bytes() for path in copy.iterdir()}
    edit(tree)
    files = [SimpleNamespace(rfilename=name, size=len(content)) for name, content in tree.items()]

    def download(_, *, allow_patterns, **__):
        assert "model.safetensors" not in allow_patterns, "weights were downloaded"
        folder = tmp_path / "snapshots" / "0123"
        folder.mkdir(parents=True, exist_ok=True)
        for name in allow_patterns:
            if name in tree:
                (folder / name).write_bytes(tree[name])
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: SimpleNamespace(siblings=files))
    monkeypatch.chdir(tmp_path)
    one_line_error("someone/theirs", fragment)
