"""The last steps of a conversion, each refused by the system, or the process killed there: no bundle is lost."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from voxcpm_constants.architecture import Architecture
from voxcpm_constants.errors import InputError
from voxcpm_constants.manifest import Manifest, Source, record_folder
from voxcpm_constants.step_models import StepSizes
from voxcpm_conversion.workspace import Workspace

SIZES = StepSizes(kv_length=64)
PLAN: dict[str, object] = {
    "schema": 1,
    "source": "digest",
    "lora": None,
    "sizes": SIZES.model_dump(mode="json"),
    "target": "macOS14",
    "kv_cache": "scatter",
    "tools": {"coremltools": "9.0"},
    "vectors": "1",
}
STEPS = ("unlink", "rename of the old", "rename of the new", "removal of the old")
PLACES = [(step, True) for step in STEPS] + [(step, False) for step in STEPS if "old" not in step]
"""Each step, and whether an earlier bundle is there."""


@pytest.fixture
def architecture(tiny_checkpoint: Path) -> Architecture:
    return Architecture.from_file(tiny_checkpoint / "config.json")


@pytest.fixture
def finish(architecture: Architecture) -> Callable[[Path, str], None]:
    """finish(folder, content): put all that a bundle has there: one package, and the manifest."""

    def make(folder: Path, content: str) -> None:
        (folder / "fp16").mkdir(parents=True, exist_ok=True)
        (folder / "fp16" / "a.mlpackage").write_text(content)
        Manifest(
            schema_version=1,
            architecture=architecture,
            sizes=SIZES,
            step_models={},
            precisions=("fp16",),
            source=Source(checkpoint="tiny", sha256="digest"),
            tools={"coremltools": "9.0"},
            files={name: file for name, file in record_folder(folder).items() if "/" in name},
        ).write(folder)

    return make


def content(bundle: Path) -> str | None:
    package = bundle / "fp16" / "a.mlpackage"
    return package.read_text() if package.is_file() else None


def disturb(step: str, bundle: Path, act: Callable[[], None]) -> None:
    """Have `act` called just before a step of `publish`."""
    replace, unlink = Path.replace, Path.unlink
    done: list[str] = []

    def at(name: str) -> None:
        if name == step and name not in done:
            done.append(name)
            act()

    def replaced(path: Path, target: Path) -> Path:
        if target == bundle.with_name(f".{bundle.name}.replaced"):
            at("rename of the old")
        elif target == bundle:
            at("rename of the new")
        return replace(path, target)

    def unlinked(path: Path, missing_ok: bool = False) -> None:
        if path.name == "plan.json":
            at("unlink")
        elif path.parent.name.endswith(".replaced"):
            at("removal of the old")
        unlink(path, missing_ok=missing_ok)

    Path.replace, Path.unlink = replaced, unlinked  # type: ignore[method-assign, assignment]


@pytest.fixture
def undisturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `disturb` replaces is restored at the end."""
    for name in ("replace", "unlink"):
        monkeypatch.setattr(Path, name, getattr(Path, name))


@pytest.mark.parametrize(("step", "has_old"), PLACES)
def test_a_conversion_that_is_killed_at_a_last_step_is_continued(
    finish: Callable[[Path, str], None], tmp_path: Path, step: str, has_old: bool
) -> None:
    bundle = tmp_path / "b"
    if has_old:
        finish(bundle, "old")
    child = os.fork()
    if not child:
        disturb(step, bundle, lambda: os.kill(os.getpid(), signal.SIGKILL))
        workspace = Workspace(bundle, PLAN)
        finish(workspace.folder, "new")
        workspace.publish()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL

    if step == "removal of the old":
        assert content(bundle) == "new"
        return
    with Workspace(bundle, PLAN) as workspace:
        # The old one has its name, and what was finished is there.
        assert content(bundle) == ("old" if has_old else None)
        assert content(workspace.folder) == "new"
        workspace.publish()
    assert content(bundle) == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
    assert not (bundle / "plan.json").exists()


@pytest.mark.usefixtures("undisturbed")
@pytest.mark.parametrize(("step", "has_old"), [place for place in PLACES if place[0] != STEPS[3]])
def test_a_last_step_that_is_refused_leaves_the_old_bundle(
    finish: Callable[[Path, str], None], tmp_path: Path, step: str, has_old: bool
) -> None:
    bundle = tmp_path / "b"
    if has_old:
        finish(bundle, "old")

    def refuse() -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    disturb(step, bundle, refuse)
    with Workspace(bundle, PLAN) as workspace:
        finish(workspace.folder, "new")
        with pytest.raises(OSError, match="Input/output"):
            workspace.publish()
    assert content(bundle) == ("old" if has_old else None)

    with Workspace(bundle, PLAN) as workspace:
        assert content(workspace.folder) == "new"
        workspace.publish()
    assert content(bundle) == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_a_leftover_whose_removal_was_interrupted_is_not_put_back(
    finish: Callable[[Path, str], None], tmp_path: Path
) -> None:
    old = tmp_path / ".b.replaced"
    finish(old, "old")
    (old / "fp16" / "a.mlpackage").unlink()

    with Workspace(tmp_path / "b", PLAN):
        assert not (tmp_path / "b").exists()
    assert json.loads((old / "manifest.json").read_text())["files"]


@pytest.mark.parametrize("changed", ["tools", "source"])
def test_what_another_plan_has_begun_is_not_continued(tmp_path: Path, changed: str) -> None:
    def begun(plan: dict[str, object]) -> bool:
        with Workspace(tmp_path / "bundle", plan) as workspace:
            return workspace.has("fp16/a.mlpackage")

    with Workspace(tmp_path / "bundle", PLAN) as workspace:
        workspace.add("fp16/a.mlpackage", lambda path: path.write_text("content"))
    assert begun(PLAN)

    assert not begun({**PLAN, changed: "other"})


def test_temporary_files_of_what_failed_are_closed_before_their_folder_goes(tmp_path: Path) -> None:
    """A file that removes itself is missed where its folder has gone: a traceback from nowhere.

    The frames of an error keep it, and so does a method of it that was called.
    """
    held = []

    def fail() -> None:
        file = tempfile.NamedTemporaryFile()  # noqa: SIM115 - kept by the frame of the error
        held.append(file.write)
        file.write(b"0")
        raise InputError("refused")

    make = tempfile.NamedTemporaryFile
    with Workspace(tmp_path / "bundle", PLAN) as workspace:
        with pytest.raises(InputError) as raised, workspace.temporary_files():
            fail()
        assert raised.value is not None
        with pytest.raises(ValueError, match="closed"):
            held[0](b"0")
    assert tempfile.NamedTemporaryFile is make


def test_a_bundle_is_as_readable_as_the_process_makes_folders(tmp_path: Path) -> None:
    """coremltools makes folders and files in temporary places, which are their owner's alone."""

    def write(path: Path) -> None:
        shutil.copytree(tempfile.mkdtemp(dir=tmp_path), path)
        (path / "weights").mkdir(0o700)
        (path / "weights" / "weight.bin").touch(0o600)

    before = os.umask(0o027)
    try:
        with Workspace(tmp_path / "bundle", PLAN) as workspace:
            workspace.add("fp16/a.mlpackage", write)
    finally:
        os.umask(before)

    package = workspace.folder / "fp16" / "a.mlpackage"
    made = {path.name: path.stat().st_mode & 0o777 for path in (package, *package.rglob("*"))}
    assert made == {"a.mlpackage": 0o750, "weights": 0o750, "weight.bin": 0o640}


def write_package(path: Path) -> None:
    path.mkdir()
    (path / "weight.bin").write_text("1234")


def _begun(bundle: Path) -> Path:
    """The folder of a conversion that ended with three parts finished: two folders, and a file."""
    with Workspace(bundle, PLAN) as workspace:
        for name in ("a", "b"):
            workspace.add(f"fp16/{name}.mlpackage", write_package)
        workspace.add("vectors/a.npz", lambda path: path.write_text("content"))
        return workspace.folder


@pytest.mark.parametrize("changed", ["bytes", "size", "missing", "link", "more"])
def test_a_part_that_has_changed_since_it_was_finished_is_made_again(tmp_path: Path, changed: str) -> None:
    """A flipped byte would be published with its own digest, and never be noticed."""
    package = _begun(tmp_path / "bundle") / "fp16" / "a.mlpackage"
    weights = package / "weight.bin"
    if changed == "more":
        (package / "stray").write_text("of nobody")
    else:
        weights.unlink()
    if changed == "link":
        (tmp_path / "else").write_text("1234")
        weights.symlink_to(tmp_path / "else")
    elif changed in ("bytes", "size"):
        weights.write_text({"bytes": "1235", "size": "12345"}[changed])

    with Workspace(tmp_path / "bundle", PLAN) as workspace:
        for part in ("fp16/b.mlpackage", "vectors/a.npz"):
            assert workspace.has(part)
        if changed == "more":
            assert workspace.has("fp16/a.mlpackage")
            assert not (package / "stray").exists()
        else:
            assert not workspace.has("fp16/a.mlpackage")
            assert not package.exists()
            workspace.add("fp16/a.mlpackage", write_package)
        found = record_folder(workspace.folder)
        assert workspace.files() == {name: record for name, record in found.items() if "/" in name}


@pytest.mark.parametrize(
    "damage", ["{", '{"fp16/a.mlpackage": {"../x": {"bytes": 1, "sha256": "0"}}}', "[" * 100_000]
)
def test_without_readable_records_every_part_is_made_again(tmp_path: Path, damage: str) -> None:
    folder = _begun(tmp_path / "bundle")
    (folder / "parts.json").write_text(damage)

    with Workspace(tmp_path / "bundle", PLAN) as workspace:
        assert workspace.files() == {}
        assert {path.name for path in folder.iterdir()} == {"plan.json", "parts.json"}


def test_a_dropped_precision_is_gone_and_not_listed(tmp_path: Path) -> None:
    _begun(tmp_path / "bundle")

    with Workspace(tmp_path / "bundle", PLAN) as workspace:
        workspace.drop("fp16")
        assert list(workspace.files()) == ["vectors/a.npz"]
        assert not (workspace.folder / "fp16").exists()


@pytest.mark.parametrize("other", [{"source": "another"}, {"tools": {"coremltools": "9.1"}}])
def test_a_finished_folder_of_another_plan_is_not_taken(
    finish: Callable[[Path, str], None], tmp_path: Path, other: dict[str, object]
) -> None:
    finish(tmp_path / ".b.partial", "new")
    with Workspace(tmp_path / "b", {**PLAN, **other}) as workspace:
        assert content(workspace.folder) is None
