import os
import shutil
from importlib import metadata
from pathlib import Path

import pytest

from voxcpm_constants.errors import MissingExtraError
from voxcpm_runtime import InputError, VoxCPM
from voxcpm_runtime.bundle import pretrained
from voxcpm_runtime.commands import cli


@pytest.fixture
def converted(monkeypatch, speaking, folder):
    """The requested conversions, each a copy of the tiny bundle, with an empty cache."""
    asked = []

    def convert(**given):
        asked.append(given)
        shutil.copytree(speaking, given["output"])

    monkeypatch.setenv("VOXCPM_COREML_CACHE", str(folder / "cache"))
    monkeypatch.setattr(pretrained, "_convert_command", lambda _: convert)
    monkeypatch.setattr(pretrained, "version", lambda _: "1")
    return asked


@pytest.fixture
def checkpoint(folder):
    (folder / "checkpoint").mkdir()
    (folder / "checkpoint" / "config.json").write_text("{}")
    return folder / "checkpoint"


def test_a_hub_id_is_converted_once(converted):
    tts = VoxCPM.from_pretrained("openbmb/VoxCPM1.5", False, None, "downloads", True, False, "auto")
    again = VoxCPM.from_pretrained("openbmb/VoxCPM1.5", cache_dir="elsewhere", device=None, precision="int8")
    assert converted == [
        {
            "checkpoint": "openbmb/VoxCPM1.5",
            "output": tts.bundle.folder,
            "precision": ["int8"],
            "lora": None,
            "cache_dir": Path("downloads"),
            "local_files_only": True,
        }
    ]
    assert again.bundle.folder == tts.bundle.folder
    assert tts.bundle.folder.name.startswith("pretrained-VoxCPM1.5-")
    assert tts.generate("hello.", seed=1).size


def test_a_folder_that_changed_is_converted_again(converted, checkpoint):
    for _ in range(2):
        VoxCPM.from_pretrained(str(checkpoint))
    assert len(converted) == 1
    os.utime(checkpoint / "config.json", (1, 1))
    VoxCPM.from_pretrained(str(checkpoint))
    lora = checkpoint.with_name("lora.ckpt")
    lora.touch()
    VoxCPM.from_pretrained(str(checkpoint), lora_weights_path=lora)
    assert [given["lora"] for given in converted] == [None, None, lora]
    assert len({given["output"] for given in converted}) == 3


def test_a_bundle_is_opened_as_it_is(converted, speaking):
    assert VoxCPM.from_pretrained(speaking).bundle.folder == Path(speaking)
    assert not converted


def test_what_cannot_be_opened_is_a_one_line_error(converted, speaking):
    for given, message in (
        ({"hf_model_id": speaking, "lora_weights_path": "lora"}, "this is a bundle"),
        ({"hf_model_id": "absent"}, "expected a folder with a checkpoint"),
        ({"hf_model_id": "a/b", "lora_config": {}}, r"read from lora_config\.json"),
    ):
        with pytest.raises(InputError, match=message):
            VoxCPM.from_pretrained(**given)
    assert not converted


def test_missing_extra_is_named(monkeypatch):
    monkeypatch.setattr(pretrained, "version", lambda _: metadata.version("no-such-package"))
    with pytest.raises(MissingExtraError, match=r"a/b is a checkpoint.*voxcpm-coreml\[convert\]"):
        VoxCPM.from_pretrained("a/b")


@pytest.mark.parametrize("device", ["cuda", "cuda:0", "mps"])
def test_upstreams_other_devices_are_one_line_errors(converted, checkpoint, capsys, device):
    with pytest.raises(InputError, match="on a Mac, compute units choose the GPU"):
        VoxCPM.from_pretrained(str(checkpoint), device=device)
    assert (
        cli.main(["generate", "--model-path", str(checkpoint), "--device", device, "--text", "hello."]) == 2
    )
    assert capsys.readouterr().err.startswith("error: device must be auto or cpu")
    assert not converted


@pytest.mark.parametrize("command", ["generate", "batch"])
def test_upstreams_flags_name_a_checkpoint(converted, folder, checkpoint, capsys, command):
    (folder / "lines.txt").write_text("hello.\n")
    rest = {"batch": ["--input", "lines.txt", "-od", "out"], "generate": ["--text", "hello.", "-o", "a.wav"]}[
        command
    ]
    unchanged = ["--no-denoiser", "--no-optimize", "--zipenhancer-path", "x", "--device", "auto"]
    assert cli.main([command, "--model-path", str(checkpoint), *rest, *unchanged, "-q"]) == 0
    assert [given["checkpoint"] for given in converted] == [str(checkpoint)]
    assert (folder / ("out/output_001.wav" if command == "batch" else "a.wav")).is_file()
    assert not capsys.readouterr().err
