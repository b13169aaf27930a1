import json
import resource

import pytest
import torch
from typer.testing import CliRunner

from voxcpm_constants.architecture import Architecture
from voxcpm_constants.errors import CheckpointError, InputError
from voxcpm_constants.tokenizer_file import AUDIO_START
from voxcpm_conversion.checkpoint import Checkpoint
from voxcpm_conversion.synthetic import write_synthetic_checkpoint
from voxcpm_conversion.synthetic_command import synthesize_checkpoint
from voxcpm_conversion.synthetic_presets import LIKENESSES, presets, write_tokenizer

PUBLISHED = ("0.5b", "1.5", "2")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.mark.parametrize("name", PUBLISHED)
def test_full_size_presets_have_the_published_configuration(name, shared_data):
    published = Architecture.from_file(shared_data / "config" / f"voxcpm-{name}.json").model_dump()
    preset = Architecture.from_document(presets()[name]).model_dump()
    for key in ("long_factor", "short_factor"):
        expected = published["lm_config"]["rope_scaling"].pop(key)
        # Angles are computed in float32, whose rounding is 6e-8.
        assert preset["lm_config"]["rope_scaling"].pop(key) == pytest.approx(expected, rel=2e-7), key
    assert preset == published


def test_weights_depend_on_the_seed_and_not_on_the_depth(tmp_path, tokenizer):
    document = presets()["tiny"]
    deeper = {**document, "lm_config": {**document["lm_config"], "num_hidden_layers": 3}}
    asked = {"a": (document, 5), "b": (document, 5), "c": (deeper, 5), "d": (document, 6)}
    given = {"dtype": "float32", "tokenizer": tokenizer}
    for name, (config, seed) in asked.items():
        write_synthetic_checkpoint(tmp_path / name, config, seed=seed, **given)
    first, again, deep, other = (Checkpoint.open(tmp_path / name) for name in asked)
    assert first.sha256() == again.sha256() != other.sha256()
    name = "base_lm.layers.1.mlp.gate_proj.weight"
    assert torch.equal(first.tensor(name), deep.tensor(name))
    assert not torch.equal(first.tensor(name), other.tensor(name))


def test_rejects_a_non_empty_folder_and_another_models_config(tmp_path, tokenizer):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/model.safetensors").touch()
    with pytest.raises(CheckpointError, match="new or empty folder"):
        write_synthetic_checkpoint(tmp_path / "a", presets()["tiny"], seed=0, tokenizer=tokenizer)
    with pytest.raises(CheckpointError, match="lm_config"):
        write_synthetic_checkpoint(tmp_path / "b", {"hidden_size": 3}, seed=0, tokenizer=tokenizer)
    with pytest.raises(CheckpointError, match=r"with tokenizer\.json to copy"):
        write_synthetic_checkpoint(tmp_path / "c", presets()["tiny"], seed=0, tokenizer=tmp_path / "no")


def test_failed_write_leaves_nothing_and_a_retry_succeeds(tmp_path):
    folder = tmp_path / "made"
    folder.mkdir()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        _, error = command("tiny", "-o", str(folder))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert isinstance(error, CheckpointError)
    assert str(error) == f"{folder}: the checkpoint cannot be written (File too large)"
    assert list(tmp_path.rglob("*")) == [folder]
    assert command("tiny", "-o", str(folder))[0] == 0
    assert [path.name for path in tmp_path.iterdir()] == ["made"]
    assert Checkpoint.open(folder).sha256()


def command(*arguments):
    import typer

    app = typer.Typer()
    app.command()(synthesize_checkpoint)
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.exception


def test_command_accepts_a_preset_in_any_case_or_a_config(tmp_path, capsys):
    synthesize_checkpoint("Tiny", tmp_path / "a", seed=3, as_json=True)
    assert json.loads(capsys.readouterr().out) == {"output": str(tmp_path / "a"), "seed": 3}
    config = tmp_path / "config.json"
    config.write_text(json.dumps(presets()["tiny"]))
    assert command(str(config), "-o", str(tmp_path / "b"), "--seed", "3")[0] == 0
    assert Checkpoint.open(tmp_path / "a").sha256() == Checkpoint.open(tmp_path / "b").sha256()
    _, error = command("huge", "-o", str(tmp_path / "c"))
    assert isinstance(error, InputError)
    assert not (tmp_path / "c").exists()


def test_weights_are_like_trained_ones(tmp_path, tokenizer):
    """Outlier channels cancel in float32; tails are heavy; both stop logits are large and almost equal."""

    def made(like):
        given = {"seed": 0, "dtype": "float32", "likeness": like, "tokenizer": tokenizer}
        return Checkpoint.open(write_synthetic_checkpoint(tmp_path / like, presets()["tiny"], **given))

    def kurtosis(weight):
        return float(weight.pow(4).mean() / weight.pow(2).mean() ** 2)

    plain, outliers, tails, tied, massive, _ = map(made, LIKENESSES)
    norm, matrix = "base_lm.layers.0.input_layernorm.weight", "base_lm.layers.0.self_attn.q_proj.weight"
    torch.testing.assert_close(*(c.tensor(matrix) * c.tensor(norm) for c in (plain, outliers)))
    assert outliers.tensor(matrix).abs().max() > 20 * plain.tensor(matrix).abs().max()
    assert kurtosis(plain.tensor(matrix)) < 4
    assert kurtosis(tails.tensor(matrix)) > 20
    go_on, stop = tied.tensor("stop_head.weight")
    assert (go_on + stop).norm() > 20 * (go_on - stop).norm()
    begins = massive.tensor("base_lm.embed_tokens.weight").abs()[AUDIO_START]
    for row in (begins, massive.tensor("feat_encoder.special_token").abs().flatten()):
        assert row.max() > 100 * row.median()
