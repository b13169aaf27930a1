import json
import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest

from voxcpm_constants.errors import InputError
from voxcpm_constants.manifest import record_folder
from voxcpm_constants.step_models import StepSizes
from voxcpm_conversion import convert as conversion
from voxcpm_conversion.checkpoint import Checkpoint
from voxcpm_conversion.replacing import bundle_folder
from voxcpm_conversion.workspace import Workspace
from voxcpm_runtime.bundle.opening import DEFAULT_BUNDLE

PLAN: dict[str, object] = {"source": "digest", "tools": {"coremltools": "9.0"}}
STEPS = ("rename of the old", "rename of the new", "removal of the old")


def write_package(path, content="1234"):
    path.mkdir()
    (path / "weight.bin").write_text(content)


def content(bundle):
    weights = bundle / "fp16" / "a.mlpackage" / "weight.bin"
    return weights.read_text() if weights.is_file() else None


def finished(bundle):
    workspace = Workspace(bundle, PLAN)
    if not workspace.has("fp16/a.mlpackage"):
        workspace.add("fp16/a.mlpackage", lambda path: write_package(path, "new"))
    return workspace


def old_bundle(bundle):
    (bundle / "fp16").mkdir(parents=True)
    write_package(bundle / "fp16" / "a.mlpackage", "old")


def disturb(monkeypatch, step, bundle, act):
    """Call `act` before the first run of a step of `publish`."""
    replace, rmtree, done = Path.replace, shutil.rmtree, []

    def at(name):
        if name == step and name not in done:
            done.append(name)
            act()

    def replaced(path, target):
        at({bundle: "rename of the old"}.get(path, ""))
        at("rename of the new" if target == bundle and path.name == "bundle" else "")
        return replace(path, target)

    def removed(path, **options):
        at("removal of the old" if (path / "temporary" / "replaced").exists() else "")
        rmtree(path, **options)

    monkeypatch.setattr(Path, "replace", replaced)
    monkeypatch.setattr(shutil, "rmtree", removed)


@pytest.mark.parametrize(
    ("step", "has_old"), [(STEPS[0], True), (STEPS[1], True), (STEPS[1], False), (STEPS[2], True)]
)
def test_conversion_killed_in_a_final_step_resumes(monkeypatch, tmp_path, step, has_old):
    bundle = tmp_path / "b"
    if has_old:
        old_bundle(bundle)
    child = os.fork()
    if not child:
        disturb(monkeypatch, step, bundle, lambda: os.kill(os.getpid(), signal.SIGKILL))
        finished(bundle).publish()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    if step == "removal of the old":
        assert content(bundle) == "new"
        finished(bundle).close()
        assert content(bundle) == "new"
        return
    with Workspace(bundle, PLAN) as workspace:
        # The old bundle has its name, and the finished parts are there.
        assert content(bundle) == ("old" if has_old else None)
        assert content(workspace.folder) == "new"
        workspace.publish()
    assert content(bundle) == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
    assert [path.name for path in bundle.iterdir()] == ["fp16"]


def test_workspace_in_use_or_of_another_plan_is_not_resumed(tmp_path):
    first = finished(tmp_path / "b")
    with pytest.raises(InputError, match="another conversion is writing this bundle"):
        Workspace(tmp_path / "b", PLAN)
    first.close()
    for plan, continued in ((PLAN, True), ({**PLAN, "tools": {}}, False)):
        with Workspace(tmp_path / "b", plan) as workspace:
            assert workspace.has("fp16/a.mlpackage") is continued
            assert (content(workspace.folder) == "new") is continued


def test_bundle_permissions_follow_the_umask(tmp_path):
    """coremltools creates temporary folders and files that only the owner can read."""

    def write(path):
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


def begun(bundle):
    """The folder of an interrupted conversion with three finished parts: two folders and a file."""
    with Workspace(bundle, PLAN) as workspace:
        for name in ("a", "b"):
            workspace.add(f"fp16/{name}.mlpackage", write_package)
        workspace.add("vectors/a.npz", lambda path: path.write_text("content"))
        return workspace.folder


@pytest.mark.parametrize("changed", ["bytes", "missing", "link", "more"])
def test_changed_part_is_rebuilt(tmp_path, changed):
    """A flipped byte would be published with its own digest and go unnoticed."""
    package = begun(tmp_path / "bundle") / "fp16" / "a.mlpackage"
    weights = package / "weight.bin"
    if changed == "more":
        (package / "stray").write_text("of nobody")
    else:
        weights.unlink()
    if changed == "link":
        (tmp_path / "else").write_text("1234")
        weights.symlink_to(tmp_path / "else")
    elif changed == "bytes":
        weights.write_text("1235")
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
        assert workspace.files() == record_folder(workspace.folder)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("filesystem error: cannot copy: Interrupted call [/a/tmp1] [/b]", "cannot copy: Interrupted call"),
        ("A valid manifest does not exist at path: /a/Manifest.json", "A valid manifest does not exist"),
        ("[MIL FileWriter]: Unknown error occurred while writing.", "Unknown error occurred while writing."),
        ("expected scalar type Half", None),
    ],
)  # fmt: skip
def test_coremltools_write_error_is_one_line(tmp_path, monkeypatch, said, reason):
    """coremltools 9.0's message; other RuntimeErrors are unchanged."""

    def refused():
        with (
            pytest.raises((InputError, RuntimeError)) as caught,
            Workspace(tmp_path / "b", PLAN) as workspace,
            workspace.temporary_files(),
        ):
            raise RuntimeError(said)
        return str(caught.value)

    assert refused() == (
        said if reason is None else f"{tmp_path}: cannot be written ({reason}); run the same command again"
    )
    full = shutil.disk_usage(tmp_path)._replace(free=5000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    assert "cannot be written (no space left on device)" in refused()


def test_file_that_a_failed_call_left_open_closes_before_its_folder_is_deleted(tmp_path):
    """The file is left open, as by coremltools on a full disk; closing it later would fail with a second error."""

    def failing():
        file = tempfile.NamedTemporaryFile()  # noqa: SIM115 - left open, as in coremltools
        left.append(Path(file.name))
        raise OSError("No space left on device")

    left: list[Path] = []
    with (
        pytest.raises(OSError, match="No space"),
        Workspace(tmp_path / "b", PLAN) as workspace,
        workspace.temporary_files() as folder,
    ):
        failing()
    assert left[0].parent == folder


def bundle(folder):
    """Make the folder a bundle, by its manifest."""
    folder.mkdir(parents=True)
    shutil.copy(DEFAULT_BUNDLE / "manifest.json", folder)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory inside another folder."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def refused(output, *inputs, match, overwrite=True):
    with pytest.raises(InputError, match=match):
        bundle_folder(Path(output), inputs, overwrite=overwrite)


def test_bundle_is_replaced_only_with_overwrite(here):
    bundle(here / "b")
    (here / "ck").mkdir()
    assert bundle_folder(Path("b"), ["ck"], overwrite=True) == here / "b"
    refused("b", "ck", match=r"already exists.*--overwrite", overwrite=False)
    assert bundle_folder(Path("new"), ["ck"], overwrite=False) == here / "new"


@pytest.mark.parametrize("name", ["ck", "absent/../ck", "{absolute}/ck", "link/../ck"])
def test_output_must_not_be_an_input_however_spelled(here, name):
    bundle(here / "ck")  # even with a bundle's manifest
    (here / "below").mkdir()
    (here / "link").symlink_to(here / "below")
    refused(name.format(absolute=here), "ck", match="would delete .*ck, which the conversion reads")


def test_output_must_not_contain_an_input_or_the_working_directory(here, monkeypatch):
    bundle(here / "b")
    (here / "b/lora").mkdir()
    (here / "b/lora/lora_weights.ckpt").touch()
    (here / "ck").mkdir()
    refused("b", "ck", "b/lora/lora_weights.ckpt", match="which the conversion reads")
    (here / "linked").symlink_to(here / "b/lora")
    refused("b", "linked", match="which the conversion reads")
    (here / "ck/model.safetensors").symlink_to(here / "b/lora/lora_weights.ckpt")
    refused("b", "ck", match="which the conversion reads")
    monkeypatch.chdir(here / "b/lora")
    refused("..", match="current folder")


def test_only_a_bundle_is_replaced(here):
    (here / "app").mkdir()
    (here / "app/manifest.json").write_text(json.dumps({"name": "my app", "version": "1.0"}))
    refused("app", match=r"no valid manifest\.json")
    os.mkfifo(here / "pipe")
    (here / "loop").symlink_to("loop")
    for name in ("app/manifest.json", "pipe", "loop"):
        for overwrite in (True, False):
            refused(name, match=f"{name}: not a folder", overwrite=overwrite)


def test_users_folder_with_a_workspace_name_is_preserved(here):
    with Workspace(here / "a", {}) as left:
        left.add("fp16/a", Path.touch)
    assert bundle_folder(Path("a"), [], overwrite=False) == here / "a"
    (here / ".b.partial").mkdir()
    (here / ".b.partial/diary.txt").touch()
    (here / ".c.partial").symlink_to(here)
    for name in "bc":
        refused(name, match=rf"\.{name}\.partial: .*move it away")


def test_output_is_checked_again_before_replacement(tiny_checkpoint, tmp_path, monkeypatch):
    """A folder may appear during the conversion, which takes minutes."""

    def appear(*_):
        (tmp_path / "b").mkdir(exist_ok=True)
        (tmp_path / "b/diary.txt").touch()

    monkeypatch.setattr(conversion, "_add_step_model", appear)
    with pytest.raises(InputError, match="no valid manifest"):
        conversion.convert(
            Checkpoint.open(tiny_checkpoint),
            tmp_path / "b",
            precisions=["fp16"],
            sizes=StepSizes(kv_length=64),
            overwrite=True,
        )
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["diary.txt"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ck", "-o", "ck"], "which the conversion reads"),
        (["ck", "-o", "lora", "--lora", "lora"], "which the conversion reads"),
        # Before anything is looked up or downloaded.
        (["some-org/some-model", "-o", "photos"], "no valid manifest.json"),
    ],
)
def test_the_command_deletes_nothing_else(here, refusal, arguments, message):
    for name in ("ck/config.json", "lora/lora_weights.ckpt", "photos/a.jpg"):
        (here / name).parent.mkdir()
        (here / name).touch()
    before = sorted(here.rglob("*"))
    assert message in refusal("convert", *arguments, "--overwrite")
    assert sorted(here.rglob("*")) == before
