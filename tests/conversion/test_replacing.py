"""What --overwrite may delete: a bundle, and never what the same command reads."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from voxcpm_constants.architecture import Architecture
from voxcpm_constants.errors import InputError
from voxcpm_constants.manifest import Manifest, Source
from voxcpm_constants.step_models import StepSizes
from voxcpm_conversion import convert as conversion
from voxcpm_conversion.checkpoint import Checkpoint
from voxcpm_conversion.replacing import bundle_folder
from voxcpm_conversion.workspace import Workspace
from voxcpm_runtime.commands.cli import main

PLAN: dict[str, object] = {"schema": 1, "source": "", "tools": {}}


@pytest.fixture
def bundle(tiny_checkpoint: Path) -> Callable[[Path], Path]:
    """bundle(folder): a bundle there, by its manifest."""

    def make(folder: Path) -> Path:
        manifest = Manifest(
            architecture=Architecture.from_file(tiny_checkpoint / "config.json"),
            sizes=StepSizes(kv_length=64),
            step_models={},
            precisions=("fp16",),
            source=Source(checkpoint="tiny", sha256=""),
            tools={},
            files={},
        )
        folder.mkdir(parents=True)
        manifest.write(folder)
        return folder

    return make


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder inside another."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def contents(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def refused(output: str | Path, *inputs: str | Path, match: str) -> None:
    with pytest.raises(InputError, match=match) as raised:
        bundle_folder(Path(output), inputs, overwrite=True)
    assert "\n" not in str(raised.value)


def test_a_bundle_is_replaced_and_only_when_asked(bundle: Callable[[Path], Path], here: Path) -> None:
    bundle(here / "b")
    (here / "ck").mkdir()
    assert bundle_folder(Path("b"), ["ck"], overwrite=True) == here / "b"
    with pytest.raises(InputError, match=r"already exists.*--overwrite"):
        bundle_folder(Path("b"), ["ck"], overwrite=False)
    assert bundle_folder(Path("new"), ["ck"], overwrite=False) == here / "new"


@pytest.mark.parametrize(
    "name", ["ck", "ck/", "./ck", "../here/ck", "ck/../ck", "absent/../ck", "{absolute}/ck", "link/../ck"]
)
def test_an_input_is_no_output_however_it_is_written(
    bundle: Callable[[Path], Path], here: Path, name: str
) -> None:
    bundle(here / "ck")  # even one that a bundle's manifest lies in
    (here / "below").mkdir()
    (here / "link").symlink_to(here / "below")
    refused(name.format(absolute=here), "ck", match="would delete .*ck, which the conversion reads")
    refused(name.format(absolute=here), here / "link/../ck", match="which the conversion reads")


def test_nor_is_what_holds_an_input(bundle: Callable[[Path], Path], here: Path) -> None:
    bundle(here / "b")
    (here / "b/lora").mkdir()
    (here / "b/lora/lora_weights.ckpt").touch()
    (here / "ck").mkdir()
    for lora in ("b/lora", "b/lora/lora_weights.ckpt"):
        refused("b", "ck", lora, match="which the conversion reads")
    (here / "linked").symlink_to(here / "b/lora")
    refused("b", "linked", match="which the conversion reads")
    (here / "ck/model.safetensors").symlink_to(here / "b/lora/lora_weights.ckpt")
    refused("b", "ck", match="which the conversion reads")


@pytest.mark.parametrize("name", [".", "..", "../here", "../../{outer}"])
def test_the_current_folder_is_no_output(bundle: Callable[[Path], Path], tmp_path: Path, name: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        outer = bundle(tmp_path / "outer")
        patch.chdir(bundle(outer / "here"))
        refused(name.format(outer="outer"), match="current folder")


def test_a_folder_that_is_no_bundle_is_not_replaced(here: Path) -> None:
    (here / "empty").mkdir()
    refused("empty", match=r"no bundle's manifest\.json")
    (here / "app").mkdir()
    (here / "app/manifest.json").write_text(json.dumps({"name": "my app", "version": "1.0"}))
    refused("app", match=r"no bundle's manifest\.json")


@pytest.mark.parametrize("overwrite", [True, False])
def test_nor_is_what_is_no_folder(here: Path, *, overwrite: bool) -> None:
    (here / "file").touch()
    os.mkfifo(here / "pipe")
    (here / "loop").symlink_to("loop")
    for name in ("file", "pipe", "loop"):
        with pytest.raises(InputError, match=f"{name}: what is here is not a folder"):
            bundle_folder(Path(name), [], overwrite=overwrite)


def test_a_link_is_written_through(bundle: Callable[[Path], Path], here: Path) -> None:
    (here / "link").symlink_to(bundle(here / "b"))
    (here / "dangling").symlink_to("absent")
    assert bundle_folder(Path("link/"), [], overwrite=True) == here / "b"
    assert bundle_folder(Path("dangling"), [], overwrite=False) == here / "absent"
    refused("link", "b", match="which the conversion reads")


@pytest.mark.parametrize("name", [".b.partial", ".b.replaced"])
def test_a_users_folder_of_a_name_that_conversion_uses_is_kept(here: Path, name: str) -> None:
    (here / name).mkdir()
    (here / name / "diary.txt").touch()
    for overwrite in (True, False):
        with pytest.raises(InputError, match=f"{name}: .*move it away"):
            bundle_folder(Path("b"), [], overwrite=overwrite)
    shutil.rmtree(here / name)
    (here / name).symlink_to(here)
    refused("b", match="is not a folder")


def test_what_an_interrupted_conversion_left_is_in_nobodys_way(
    bundle: Callable[[Path], Path], here: Path
) -> None:
    left = Workspace(here / "b", PLAN).folder
    (left / "fp16").mkdir()
    bundle(here / ".b.replaced")
    assert bundle_folder(Path("b"), [], overwrite=False) == here / "b"
    for folder in (left, here / ".b.replaced"):
        shutil.rmtree(folder)
        folder.mkdir()
    assert bundle_folder(Path("b"), [], overwrite=False) == here / "b"


def test_the_output_is_looked_at_again_before_it_is_replaced(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A conversion takes minutes, in which a folder may appear."""

    def convert_nothing(*_: object) -> None:
        (tmp_path / "b").mkdir(exist_ok=True)
        (tmp_path / "b" / "diary.txt").touch()

    monkeypatch.setattr(conversion, "_add_step_model", convert_nothing)
    monkeypatch.setattr(conversion, "compile_packages", convert_nothing)
    with pytest.raises(InputError, match="no bundle's manifest"):
        conversion.convert(
            Checkpoint.open(tiny_checkpoint),
            tmp_path / "b",
            precisions=["fp16"],
            sizes=StepSizes(kv_length=64),
            overwrite=True,
        )
    assert contents(tmp_path / "b") == ["diary.txt"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ck", "-o", "ck"], "which the conversion reads"),
        (["ck", "-o", "lora", "--lora", "lora"], "which the conversion reads"),
        (["ck", "-o", "photos"], "no bundle's manifest.json"),
        # Before anything is looked for, let alone downloaded.
        (["some-org/some-model", "-o", "photos"], "no bundle's manifest.json"),
        (["absent", "-o", "photos"], "no bundle's manifest.json"),
    ],
)
def test_the_command_deletes_nothing_else(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    for name in ("ck/config.json", "lora/lora_weights.ckpt", "photos/a.jpg"):
        (here / name).parent.mkdir()
        (here / name).touch()
    before = contents(here)
    assert main(["convert", *arguments, "--overwrite"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert message in error
    assert contents(here) == before
