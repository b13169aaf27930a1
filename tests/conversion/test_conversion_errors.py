"""Failing conversions print one line and leave nothing: concurrent runs, full disks, invalid checkpoints."""

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
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps(config | {"dit_mean_mode": True}))
    line = refusal("convert", checkpoint, "-o", tmp_path / "b", "--solver-steps", "5", "--max-length", "128")
    assert "mean mode" in line


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


def stop(*_):
    raise KeyboardInterrupt


def test_max_length_defaults_to_the_checkpoints(checkpoint, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr("voxcpm_conversion.convert.convert", lambda *_, **given: stop(asked.append(given)))
    config = json.loads((checkpoint / "config.json").read_text())
    for longest, expected in ((512, 512), (9, 9), (4096, 1024)):
        (checkpoint / "config.json").write_text(json.dumps({**config, "max_length": longest}))
        assert cli.main(["convert", str(checkpoint), "-o", str(tmp_path / "b")]) == 130
        assert asked[-1]["sizes"].kv_length == expected
        assert max(asked[-1]["sizes"].prefill_chunks) <= expected


def test_result_as_json(checkpoint, tmp_path, monkeypatch, capsys):
    made = Manifest.read(DEFAULT_BUNDLE)
    monkeypatch.setattr("voxcpm_conversion.convert.convert", lambda *_, **__: made)
    given = ["convert", str(checkpoint), "-o", str(tmp_path / "b"), "--no-alignment", "--json"]
    assert cli.main(given) == 0
    expected = {
        "output": given[3],
        "layout": "bundle",
        "precisions": ["int8"],
        "target": "macOS14",
        "positions": 1024,
    }
    assert json.loads(capsys.readouterr().out) == expected


def test_a_remark_is_one_line_at_any_width(checkpoint, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setattr("voxcpm_conversion.convert.convert", lambda *_, **__: stop())
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps({**config, "[made] up": 1}))
    assert cli.main(["convert", str(checkpoint), "-o", str(tmp_path / "b"), "--no-alignment"]) == 130
    assert "config.json: ignored unknown keys [made] up\n" in capsys.readouterr().err
    assert (
        cli.main(["convert", str(checkpoint), "-o", str(tmp_path / "b"), "--no-alignment", "--quiet"]) == 130
    )
    assert capsys.readouterr().err == "error: interrupted\n"


@pytest.fixture
def package(tiny_bundle, tmp_path):
    name = "locdit_step.mlpackage"
    return shutil.copytree(tiny_bundle / "fp16" / name, tmp_path / name, copy_function=shutil.copyfile)


def damaged(content, at, change):
    content[at] += change
    return content


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda content: damaged(content, 0, -1), id="a weight that is not counted"),
        pytest.param(lambda content: content[:-1], id="an end that is missing"),
        pytest.param(lambda content: content + bytes(64), id="something behind the end"),
    ],
)
def test_incomplete_weight_file_is_rejected(package, damage):
    packages.require_whole(package)
    weights = package / WEIGHT_FILE
    weights.write_bytes(damage(bytearray(weights.read_bytes())))
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        packages.require_whole(package)
