"""Commands without a bundle use the built-in voice."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import soundfile
from filelock import FileLock

import voxcpm_constants
from voxcpm_constants.errors import BundleError, InputError
from voxcpm_constants.manifest import Manifest
from voxcpm_constants.speech_profile import SpeechProfile
from voxcpm_conversion.default_bundle import DEFAULT_CHECKPOINT
from voxcpm_runtime.bundle import default
from voxcpm_runtime.bundle.default import cached_folder, default_bundle, maker
from voxcpm_runtime.bundle.opening import open_bundle
from voxcpm_runtime.commands.cli import main

WEIGHTS = "int8/locdit_step.mlpackage/Data/com.apple.CoreML/weights/weight.bin"


@pytest.fixture
def _cache(tmp_path, monkeypatch, default_cache):
    """A copy of the user's cache with the built-in voice's bundle, to be damaged."""
    folder = tmp_path / "cache"
    shutil.copytree(default_cache, folder)
    monkeypatch.setenv("VOXCPM_COREML_CACHE", str(folder))
    return folder


@pytest.fixture
def copied(monkeypatch, default_cache):
    """The conversion's place is taken by a copy of the whole bundle; the list has the folders that were asked for."""
    (whole,) = default_cache.glob("bundles/*/manifest.json")
    asked: list[Path] = []

    def make(folder: Path) -> None:
        asked.append(folder)
        shutil.copytree(whole.parent, folder)

    monkeypatch.setattr("voxcpm_conversion.default_bundle.make_default_bundle", make)
    return asked


def test_generate_speaks_without_a_bundle(tmp_path, monkeypatch, capsys, default_cache):
    """The first call, a fixture's, converted; the bundle is there from then on."""
    monkeypatch.setenv("VOXCPM_COREML_CACHE", str(default_cache))
    monkeypatch.setattr("voxcpm_conversion.convert.convert", None)
    output = tmp_path / "speech.wav"

    assert main(["generate", "--text", "Hello there", "-o", str(output), "--seed", "1"]) == 0

    assert soundfile.info(output).duration > 0.3
    assert "seed 1" in capsys.readouterr().out
    assert default_bundle().parent == default_cache / "bundles"
    speech = SpeechProfile.beside(DEFAULT_CHECKPOINT)
    assert speech is not None
    assert Manifest.read(default_bundle()).speech == speech


@pytest.mark.usefixtures("_cache")
def test_speaking_with_a_bundle_that_is_there_imports_neither_conversion_nor_pytorch(tmp_path):
    program = (
        "import sys; from voxcpm_runtime.commands.cli import main; "
        "code = main(['generate', '--text', 'hello', '--quiet', '-o', 'speech.wav']); "
        "print(code, [name for name in ('torch', 'coremltools', 'voxcpm_conversion') if name in sys.modules])"
    )
    ran = [
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path
        )
        for _ in range(2)  # the first one lowers the step models, with coremltools
    ]
    assert ran[1].stdout == "0 []\n"


def test_the_first_call_makes_the_bundle_where_the_next_ones_find_it(tmp_path, monkeypatch, copied):
    monkeypatch.setenv("VOXCPM_COREML_CACHE", str(tmp_path))
    assert default_bundle() == default_bundle() == cached_folder(maker())
    assert len(copied) == 1
    # Of what was made only the bundle and its lock are left.
    assert sorted(path.suffix for path in (tmp_path / "bundles").iterdir()) == ["", ".lock"]


def test_a_finished_bundle_of_a_killed_run_is_not_made_again(tmp_path, monkeypatch, default_cache, copied):
    monkeypatch.setenv("VOXCPM_COREML_CACHE", str(tmp_path))
    (whole,) = default_cache.glob("bundles/*/manifest.json")
    folder = cached_folder(maker())
    shutil.copytree(whole.parent, folder.with_name(f"{folder.name}.new"))

    assert default_bundle() == folder
    assert not copied
    assert sorted(path.suffix for path in (tmp_path / "bundles").iterdir()) == ["", ".lock"]


def test_a_new_bundle_removes_the_earlier_ones_that_are_not_in_use(tmp_path, monkeypatch, copied):
    monkeypatch.setenv("VOXCPM_COREML_CACHE", str(tmp_path))
    bundles = tmp_path / "bundles"
    two_hours_ago = time.time() - 7200
    for name in ("default-0", "default-1", "default-2.new", "default-used", "default-made", "mine"):
        (bundles / name / "int8").mkdir(parents=True)
        (bundles / name / "int8" / "weight.bin").write_bytes(b"?")
        os.utime(bundles / name, (two_hours_ago, two_hours_ago))
    (bundles / "default-used" / "manifest.json").touch()
    os.utime(bundles / "default-used", (two_hours_ago, two_hours_ago))
    with monkeypatch.context() as of_another_version:
        of_another_version.setattr(default, "cached_folder", lambda _: bundles / "default-used")
        assert default_bundle() == bundles / "default-used"

    with FileLock(bundles / "default-made.lock"):
        current = default_bundle()

    assert copied
    left = {path.name for path in bundles.iterdir() if path.is_dir()}
    assert left == {current.name, "default-used", "default-made", "mine"}


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / WEIGHTS).unlink(),
        lambda folder: (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-1]),
        lambda folder: (folder / WEIGHTS).write_bytes(bytes((folder / WEIGHTS).stat().st_size)),
        lambda folder: (folder / "manifest.json").write_text("{"),
        lambda folder: (folder / WEIGHTS).with_name("more.bin").write_bytes(b"?"),
    ],
    ids=["missing", "truncated", "altered", "manifest", "unlisted"],
)
@pytest.mark.usefixtures("_cache")
def test_a_damaged_bundle_is_made_again_and_one_line_says_so(copied, tmp_path, capsys, damage):
    folder = default_bundle()
    assert not copied
    damage(folder)
    output = tmp_path / "speech.wav"

    assert main(["generate", "--text", "hello", "-o", str(output), "--seed", "1"]) == 0

    assert output.is_file()
    warned = capsys.readouterr().err
    assert re.fullmatch(r"warning: the built-in voice's bundle is damaged and is made again \(.*\)\n", warned)
    assert len(copied) == 1
    assert main(["generate", "--text", "hello", "-o", str(output), "--seed", "1"]) == 0
    assert len(copied) == 1
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("_cache")
def test_a_damaged_bundle_stays_until_another_one_is_whole(monkeypatch):
    folder = default_bundle()
    (folder / WEIGHTS).unlink()

    def without_torch(_: Path) -> None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr("voxcpm_conversion.default_bundle.make_default_bundle", without_torch)
    with pytest.warns(UserWarning, match="is damaged"), pytest.raises(InputError, match="needs torch"):
        open_bundle(None)
    assert (folder / "manifest.json").is_file()


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / WEIGHTS.replace("int8", "fp16")).write_bytes(b"?"),
        lambda folder: (folder / "manifest.json").write_text("{"),
    ],
    ids=["another precision", "manifest"],
)
@pytest.mark.usefixtures("_cache")
def test_commands_that_only_look_at_the_bundle_repair_it_too(copied, capsys, damage):
    damage(default_bundle())

    assert main(["inspect"]) == 0

    assert "is damaged and is made again" in capsys.readouterr().err
    assert len(copied) == 1


def test_changed_declarations_make_the_bundle_anew(monkeypatch, tmp_path):
    monkeypatch.setenv("VOXCPM_COREML_CACHE", str(tmp_path / "cache"))
    before = cached_folder(maker())
    changed = tmp_path / "voxcpm_constants"
    shutil.copytree(Path(voxcpm_constants.__file__).parent, changed)
    with (changed / "manifest.py").open("a") as file:
        file.write("# changed")
    monkeypatch.setattr(voxcpm_constants.__spec__, "origin", str(changed / "__init__.py"))

    assert cached_folder(maker()) != before


def in_place_of_the_lock(folder: Path) -> None:
    folder.with_name(f"{folder.name}.lock").mkdir(parents=True)


def in_place_of_the_folder(folder: Path) -> None:
    folder.parent.mkdir(parents=True)
    folder.write_text("a file")


@pytest.mark.usefixtures("copied")
@pytest.mark.parametrize("obstacle", [in_place_of_the_lock, in_place_of_the_folder])
def test_what_is_in_the_way_in_the_cache_is_one_line(tmp_path, monkeypatch, capsys, obstacle):
    monkeypatch.setenv("VOXCPM_COREML_CACHE", str(tmp_path / "cache"))
    obstacle(cached_folder(maker()))

    assert main(["inspect"]) == 2

    assert re.fullmatch(r"error: .*cannot be written there \(.*\); set .*\n", capsys.readouterr().err)


def test_a_process_that_never_finishes_the_bundle_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("VOXCPM_COREML_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(default, "_LONGEST_WAIT", 0.1)
    folder = cached_folder(maker())
    folder.parent.mkdir(parents=True)
    with FileLock(folder.with_name(f"{folder.name}.lock")):
        assert main(["inspect"]) == 2
    assert "another process has been making" in capsys.readouterr().err


@pytest.mark.usefixtures("_cache")
def test_a_bundle_that_was_named_is_never_replaced(copied):
    folder = default_bundle()
    (folder / WEIGHTS).unlink()
    with pytest.raises(BundleError, match="missing from the bundle"):
        open_bundle(folder)
    assert not copied


@pytest.mark.usefixtures("_cache")
def test_a_bundle_in_the_package_comes_first_and_is_not_repaired(copied, monkeypatch, tmp_path):
    packaged = tmp_path / "site-packages" / "default_bundle"
    shutil.copytree(default_bundle(), packaged)
    monkeypatch.setattr(default, "PACKAGED", packaged)
    assert open_bundle(None).folder == packaged

    (packaged / WEIGHTS).unlink()
    with pytest.raises(BundleError, match=r"missing from the bundle.*install it again: pip install --force"):
        open_bundle(None)
    (packaged / "manifest.json").unlink()
    with pytest.raises(BundleError, match=r"no bundle here.*install it again: pip install --force"):
        open_bundle(None)
    assert not copied


def test_without_the_conversion_extra_the_error_says_what_to_install(monkeypatch, tmp_path):
    def without_torch(_: Path) -> None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setenv("VOXCPM_COREML_CACHE", str(tmp_path))
    monkeypatch.setattr("voxcpm_conversion.default_bundle.make_default_bundle", without_torch)
    with pytest.raises(
        InputError, match=r"needs torch: name a bundle, .*make wheel.*voxcpm-coreml\[convert\]"
    ):
        default_bundle()


def test_an_installation_without_a_default_says_so(monkeypatch):
    monkeypatch.setattr(
        "voxcpm_runtime.bundle.default.entry_points", lambda group: importlib.metadata.EntryPoints()
    )
    with pytest.raises(InputError, match="no built-in voice; name a bundle"):
        default_bundle()
