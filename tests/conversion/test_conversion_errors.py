import errno
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from voxcpm_constants.errors import CheckpointError
from voxcpm_constants.manifest import Manifest
from voxcpm_constants.step_models import StepSizes
from voxcpm_constants.tensor_files import WEIGHT_FILE
from voxcpm_conversion import convert as conversion
from voxcpm_conversion.checkpoint import Checkpoint
from voxcpm_conversion.core_ml import packages
from voxcpm_runtime.bundle.opening import DEFAULT_BUNDLE
from voxcpm_runtime.commands import cli
from voxcpm_runtime.text.tokenizer import TextTokenizer

DEEP = "[" * 100_000 + "]" * 100_000
LONG = "a" * 300


@pytest.fixture
def checkpoint(tiny_checkpoint, tmp_path):
    """A checkpoint that the test may change."""
    return Path(shutil.copytree(tiny_checkpoint, tmp_path / "checkpoint"))


def test_non_finite_weight_is_named(checkpoint):
    name = "base_lm.layers.0.mlp.up_proj.weight"
    weights = load_file(checkpoint / "model.safetensors")
    weights[name][3, 2] = np.nan
    save_file(weights, checkpoint / "model.safetensors")
    opened = Checkpoint.open(checkpoint)
    with pytest.raises(CheckpointError, match=f"the weight {name} has values that are not finite"):
        opened.tensor(name)
    assert opened.tensor("base_lm.layers.0.mlp.down_proj.weight").isfinite().all()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", '{"model": {"type": "BPE"}}', "not a tokenizer file"),
        ("tokenizer_config.json", '{"unk_token": 5}', "not a tokenizer file"),
        ("config.json", DEEP, "cannot be read"),
        ("speech.json", DEEP, "cannot be read"),
    ],
)
def test_unreadable_file_fails_before_conversion(refusal, checkpoint, tmp_path, name, content, message):
    (checkpoint / name).write_text(content)
    line = refusal("convert", checkpoint, "-o", tmp_path / "bundle")
    assert line.startswith(f"error: {checkpoint / name}: ")
    assert message in line
    assert not (tmp_path / "bundle").exists()


def test_solver_steps_without_step_lengths(refusal, checkpoint, tmp_path):
    with_config(checkpoint, dit_mean_mode=True)
    given = ("convert", checkpoint, "-o", tmp_path / "b", "--solver-steps", "5", "--max-length", "128")
    assert "mean mode" in refusal(*given)


def test_a_checkpoint_without_a_tokenizer_config_converts_and_opens(checkpoint, tmp_path, monkeypatch):
    """Upstream opens it with the defaults of transformers."""
    (checkpoint / "tokenizer_config.json").unlink()
    monkeypatch.setattr(conversion, "_add_step_model", lambda *_: None)
    sizes = StepSizes(kv_length=128)
    manifest = conversion.convert(
        Checkpoint.open(checkpoint), tmp_path / "bundle", precisions=["fp16"], sizes=sizes
    )
    assert "tokenizer/tokenizer_config.json" in manifest.files
    assert TextTokenizer.from_folder(tmp_path / "bundle" / "tokenizer")("Hello.")


@pytest.mark.parametrize(
    "arguments",
    [
        ("convert", LONG, "-o", "b"),
        ("convert", "{}", "-o", LONG),
        ("synthetic", "tiny", "-o", LONG),
        ("synthetic", "tiny", "-o", "file"),
        ("synthetic", "tiny", "-o", "file/b"),
    ],
    ids=lambda arguments: " ".join(arguments).replace(LONG, "LONG"),
)
def test_invalid_output_names(refusal, tiny_checkpoint, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    refusal(*(argument.replace("{}", str(tiny_checkpoint)) for argument in arguments))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


def with_config(checkpoint, **changes):
    path = checkpoint / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(("longest", "expected"), [(512, 512), (9, 9), (4096, 1024)])
def test_max_length_defaults_to_the_checkpoints(checkpoint, tmp_path, asked, longest, expected):
    with_config(checkpoint, max_length=longest)
    assert cli.main(["convert", str(checkpoint), "-o", str(tmp_path / "b")]) == 130
    assert asked[0]["sizes"].kv_length == expected
    assert max(asked[0]["sizes"].prefill_chunks) <= expected


def test_result_as_json(checkpoint, tmp_path, monkeypatch, capsys):
    made = Manifest.read(DEFAULT_BUNDLE)
    monkeypatch.setattr("voxcpm_conversion.convert.convert", lambda *_, **__: made)
    given = ["convert", str(checkpoint), "-o", str(tmp_path / "b"), "--no-alignment", "--json"]
    assert cli.main(given) == 0
    expected = {"layout": "bundle", "precisions": ["int8"], "target": "macOS14", "positions": 1024}
    assert json.loads(capsys.readouterr().out) == {"output": given[3], **expected}


@pytest.mark.usefixtures("asked")
def test_a_remark_is_one_line_at_any_width(checkpoint, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "20")
    with_config(checkpoint, **{"[made] up": 1})
    given = ["convert", str(checkpoint), "-o", str(tmp_path / "b"), "--no-alignment"]
    assert cli.main(given) == 130
    assert "config.json: ignored unknown keys [made] up\n" in capsys.readouterr().err
    assert cli.main([*given, "--quiet"]) == 130
    assert capsys.readouterr().err == "error: interrupted\n"


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(
            lambda content: bytes([content[0] - 1]) + content[1:], id="a weight that is not counted"
        ),
        pytest.param(lambda content: content[:-1], id="an end that is missing"),
        pytest.param(lambda content: content + bytes(64), id="something behind the end"),
    ],
)
def test_incomplete_weight_file_is_rejected(tiny_bundle, tmp_path, damage):
    package = shutil.copytree(tiny_bundle / "fp16/locdit_step.mlpackage", tmp_path / "locdit_step.mlpackage")
    packages.require_whole(package)
    weights = package / WEIGHT_FILE
    weights.write_bytes(damage(weights.read_bytes()))
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        packages.require_whole(package)
