"""Conversions that cannot end well say so in one line, and leave nothing: two at once, full disks, bad checkpoints."""

import errno
import json
import os
import re
import shutil
import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from voxcpm_constants.errors import CheckpointError, InputError
from voxcpm_constants.step_models import StepSizes
from voxcpm_conversion import convert as conversion
from voxcpm_conversion.checkpoint import Checkpoint
from voxcpm_conversion.core_ml import packages
from voxcpm_conversion.core_ml.compression import compress
from voxcpm_conversion.lora import Lora
from voxcpm_conversion.workspace import Workspace
from voxcpm_runtime.commands import cli
from voxcpm_runtime.text.tokenizer import TextTokenizer

DEEP = "[" * 100_000 + "]" * 100_000
PLAN = {"schema": 3, "source": "s", "tools": {}}
LONG = "a" * 300


@pytest.fixture
def checkpoint(tiny_checkpoint, tmp_path):
    """A checkpoint of one's own, to be damaged."""
    return Path(shutil.copytree(tiny_checkpoint, tmp_path / "checkpoint"))


def one_line(capsys, *arguments):
    """The line on standard error of a command that fails with exit code 2."""
    assert cli.main([str(argument) for argument in arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    return line


def converted(checkpoint, bundle):
    return conversion.convert(
        Checkpoint.open(checkpoint), bundle, precisions=["fp16"], sizes=StepSizes(kv_length=128)
    )


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_a_weight_that_is_not_finite_is_named(checkpoint, value):
    name = "base_lm.layers.0.mlp.up_proj.weight"
    weights = load_file(checkpoint / "model.safetensors")
    weights[name][3, 2] = value
    save_file(weights, checkpoint / "model.safetensors")

    opened = Checkpoint.open(checkpoint)

    with pytest.raises(CheckpointError, match=f"the weight {name} has values that are not finite"):
        opened.tensor(name)
    assert opened.tensor("base_lm.layers.0.mlp.down_proj.weight").isfinite().all()


@pytest.mark.parametrize("document", [[], {"model": {"type": "BPE"}}])
def test_a_tokenizer_that_would_not_open_is_not_converted(capsys, checkpoint, tmp_path, document):
    (checkpoint / "tokenizer.json").write_text(json.dumps(document))

    line = one_line(capsys, "convert", checkpoint, "-o", tmp_path / "bundle")

    assert re.search(r"tokenizer\.json: (not|expected) a tokeniser file", line)
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize(
    "document", [{"unk_token": 5}, {"added_tokens_decoder": {"1": {"content": 5}}}, None]
)
def test_a_tokenizer_config_that_would_not_open_is_not_converted(capsys, checkpoint, tmp_path, document):
    (checkpoint / "tokenizer_config.json").write_text(json.dumps(document))

    line = one_line(capsys, "convert", checkpoint, "-o", tmp_path / "bundle")

    assert line.startswith(f"error: {checkpoint / 'tokenizer_config.json'}: ")
    assert not (tmp_path / "bundle").exists()


def test_a_checkpoint_without_a_tokenizer_config_converts_and_opens(checkpoint, tmp_path, monkeypatch):
    """Upstream opens it, with the defaults of transformers."""
    (checkpoint / "tokenizer_config.json").unlink()
    monkeypatch.setattr(conversion, "_add_step_model", lambda *_: None)

    manifest = converted(checkpoint, tmp_path / "bundle")

    assert "tokenizer/tokenizer_config.json" in manifest.files
    assert TextTokenizer.from_folder(tmp_path / "bundle" / "tokenizer")("Hello.")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "speech.json"])
def test_json_nested_deeply_in_a_checkpoint(capsys, checkpoint, tmp_path, name):
    (checkpoint / name).write_text(DEEP)

    assert name in one_line(capsys, "convert", checkpoint, "-o", tmp_path / "bundle")


def test_json_nested_deeply_in_a_lora_and_in_shards(checkpoint, tmp_path):
    (tmp_path / "lora").mkdir()
    save_file({"a": np.zeros(1, np.float32)}, tmp_path / "lora" / "lora_weights.safetensors")
    (tmp_path / "lora" / "lora_config.json").write_text(DEEP)
    with pytest.raises(CheckpointError, match=r"lora_config\.json.*recursion limit"):
        Lora.open(tmp_path / "lora", Checkpoint.open(checkpoint).architecture)
    (checkpoint / "model.safetensors").unlink()
    (checkpoint / "model.safetensors.index.json").write_text(DEEP)
    with pytest.raises(CheckpointError, match=r"index\.json.*recursion limit"):
        Checkpoint.open(checkpoint)


@pytest.mark.parametrize(
    "arguments",
    [
        ("convert", LONG, "-o", "b"),
        ("convert", "{}", "-o", LONG),
        ("synthetic", "tiny", "-o", LONG),
        ("synthetic", LONG, "-o", "b"),
        ("synthetic", "tiny", "-o", "file"),
        ("synthetic", "tiny", "-o", "file/b"),
    ],
    ids=lambda arguments: " ".join(arguments).replace(LONG, "LONG"),
)
def test_names_that_cannot_be_written(capsys, tiny_checkpoint, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    Path("file").touch()

    one_line(capsys, *(argument.replace("{}", str(tiny_checkpoint)) for argument in arguments))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


def test_of_two_conversions_into_one_folder_one_is_refused(capsys, tiny_checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(conversion, "_add_constants", lambda *_: pytest.fail("it began"))
    with Workspace(tmp_path / "b", PLAN):
        line = one_line(capsys, "convert", tiny_checkpoint, "-o", tmp_path / "b", "--max-length", 128)
    assert "another conversion is writing this bundle" in line
    Workspace(tmp_path / "b", PLAN).close()


def test_what_a_killed_conversion_left_goes_with_the_next_one(tmp_path):
    left = Workspace(tmp_path / "b", PLAN)
    left.add("int8/whole.mlpackage", lambda path: path.write_text("content"))
    for name in (".scratch", ".temporary", "fp16/.unfinished-a.mlpackage"):
        (left.folder / name).mkdir(parents=True)
    (left.folder / "fp16" / ".unfinished-vectors.npz").touch()
    left.close()

    with Workspace(tmp_path / "b", PLAN) as again:
        there = sorted(path.relative_to(again.folder).as_posix() for path in again.folder.rglob("*"))

    assert there == ["int8", "int8/whole.mlpackage", "parts.json", "plan.json"]


def stop(*_):
    raise KeyboardInterrupt


def test_temporary_files_of_libraries_lie_in_the_workspace(tiny_checkpoint, tmp_path, monkeypatch):
    """So that those of a killed conversion go with it."""
    places = []

    def recorded(*_):
        places.append(Path(tempfile.mkdtemp(suffix=".mlpackage")))
        raise KeyboardInterrupt

    before = tempfile.gettempdir()
    monkeypatch.setattr(conversion, "_add_step_model", recorded)
    with pytest.raises(KeyboardInterrupt):
        converted(tiny_checkpoint, tmp_path / "b")

    (place,) = places
    assert (tmp_path / ".b.partial") in place.parents
    assert not place.exists()
    assert tempfile.gettempdir() == before


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_write_that_a_full_disk_refuses_names_the_folder(
    capsys, tiny_checkpoint, tmp_path, monkeypatch, number
):
    def full(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(conversion, "_add_step_model", full)

    assert cli.main(["convert", str(tiny_checkpoint), "-o", str(tmp_path / "b")]) == 2

    line = capsys.readouterr().err.splitlines()[-1]
    assert line == (
        f"error: {tmp_path / '.b.partial'}: cannot be written ({os.strerror(number)}); the same command continues"
    )


@pytest.mark.parametrize(
    ("said", "kind", "message"),
    [
        (
            "filesystem error: cannot copy: Interrupted system call [/a/tmp1] [/a/tmp2.mlpackage/Data/weights]",
            InputError,
            r"cannot be written \(cannot copy: Interrupted system call\); the same command continues$",
        ),
        (
            "A valid manifest does not exist at path: /a/tmp1.mlpackage/Manifest.json",
            InputError,
            r"cannot be written \(A valid manifest does not exist\); the same command continues$",
        ),
        ("expected scalar type Half", RuntimeError, "expected scalar type Half"),
    ],
)
def test_a_file_that_a_library_cannot_write_is_one_line(
    tiny_checkpoint, tmp_path, monkeypatch, said, kind, message
):
    """In coremltools' words (9.0); other errors of the same kind stay what they are."""

    def refused(*_):
        raise RuntimeError(said)

    monkeypatch.setattr(conversion, "_add_step_model", refused)

    with pytest.raises(kind, match=message):
        converted(tiny_checkpoint, tmp_path / "b")


def test_a_package_that_cannot_be_read_again_is_one_line():
    """coremltools (9.0) goes on without the place of its weights when the system refuses to open it."""
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        compress(SimpleNamespace(weights_dir=None), "locdit_step", "int8")


@pytest.mark.parametrize(
    ("said", "kind", "message"),
    [
        ("weight_dir for model_path /a/main.mlpackage not found.", OSError, os.strerror(errno.EIO)),
        (
            "invalid model_path /a with error Input stream is not valid while loading.",
            OSError,
            os.strerror(errno.EIO),
        ),
        ("expected 3 axes", ValueError, "expected 3 axes"),
    ],
)
def test_functions_that_cannot_be_joined_as_a_package_cannot_be_read(
    tmp_path, monkeypatch, said, kind, message
):
    def refused(*_):
        raise ValueError(said)

    parts = {name: tmp_path / f"{name}.mlpackage" for name in ("main", "prefill")}
    for part in parts.values():
        (part / "Data").mkdir(parents=True)
        (part / "Manifest.json").write_text("{}")
    descriptor = SimpleNamespace(add_function=lambda *_, **__: None)
    tools = SimpleNamespace(save_multifunction=refused, MultiFunctionDescriptor=lambda: descriptor)
    monkeypatch.setattr(packages, "import_coremltools", lambda: SimpleNamespace(utils=tools))

    with pytest.raises(kind, match=message):
        packages._join(parts, tmp_path / "a.mlpackage")


def test_a_package_with_a_list_that_was_only_begun_is_not_taken(tmp_path):
    """coremltools (9.0) goes on when the system refuses to write it, and would leave it in the bundle."""
    whole, begun = tmp_path / "whole.mlpackage", tmp_path / "begun.mlpackage"
    for package in (whole, begun):
        (package / "Data").mkdir(parents=True)
        (package / "Manifest.json").write_text("{}")
    (begun / "Manifest.a163eed5-7538-4177-a2dd-95e2fd613b86").touch()

    packages._join({"main": whole}, tmp_path / "a.mlpackage")
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        packages._join({"main": begun}, tmp_path / "b.mlpackage")

    assert (tmp_path / "a.mlpackage" / "Manifest.json").exists()
    assert not (tmp_path / "b.mlpackage").exists()


def test_without_max_length_it_is_what_the_checkpoint_allows(checkpoint, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(
        "voxcpm_conversion.cli.convert_checkpoint", lambda *_, **given: stop(asked.append(given))
    )
    config = json.loads((checkpoint / "config.json").read_text())
    for longest, expected in ((512, 512), (9, 9), (4096, 1024)):
        (checkpoint / "config.json").write_text(json.dumps({**config, "max_length": longest}))
        assert cli.main(["convert", str(checkpoint), "-o", str(tmp_path / "b")]) == 130
        assert asked[-1]["sizes"].kv_length == expected
        assert max(asked[-1]["sizes"].prefill_chunks) <= expected


def test_a_full_disk_that_a_library_does_not_name(tiny_checkpoint, tmp_path, monkeypatch):
    def full(*_):
        raise RuntimeError("[MIL FileWriter]: Unknown error occurred while writing data to the file.")

    monkeypatch.setattr(conversion, "_add_step_model", full)
    with pytest.raises(
        InputError, match=r"cannot be written \(Unknown error occurred .* to the file\.\); the same"
    ):
        converted(tiny_checkpoint, tmp_path / "b")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=5000))
    with pytest.raises(InputError, match="no space left on device; free some"):
        converted(tiny_checkpoint, tmp_path / "b")
