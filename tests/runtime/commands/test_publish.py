"""A bundle goes to the hub and comes back. The hub is a stand-in on the loopback interface, in memory."""

from __future__ import annotations

import importlib.util
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from hub_stand_in import LARGE, READER, WRITER, Hub
from voxcpm_constants.errors import BundleError
from voxcpm_constants.manifest import Manifest
from voxcpm_runtime.commands import cli
from voxcpm_runtime.commands.publish import publishable_files

# What is published does not depend on the generation.
pytestmark = [
    pytest.mark.parametrize("architecture", ["voxcpm"], indirect=True),
    pytest.mark.usefixtures("architecture"),
]
Command = Callable[..., CompletedProcess[str]]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub that child processes use, with an empty cache of downloads and a token that may write."""
    server = Hub()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", server.address)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_TOKEN", WRITER)
    monkeypatch.delenv("HF_HUB_DISABLE_XET", raising=False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def carded(bundle_folder: Path) -> Path:
    """A bundle with a card, and with an object that is large for the stand-in."""
    (bundle_folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n\n# Tiny\n")
    (bundle_folder / "fp16" / "locdit_step.mlpackage" / "Manifest.json").write_bytes(b"w" * (2 * LARGE))
    _record_again(bundle_folder)
    return bundle_folder


def _record_again(folder: Path) -> None:
    from voxcpm_constants.manifest import record_folder

    files = {name: record for name, record in record_folder(folder).items() if "/" in name}
    Manifest.read(folder).model_copy(update={"files": files}).write(folder)


def listed(folder: Path) -> set[str]:
    return {*Manifest.read(folder).files, "manifest.json", "manifest.sha256", "README.md"}


def test_a_bundle_that_was_published_opens_again_and_speaks_the_same(
    tiny_bundle: Path, hub: Hub, command: Command, tmp_path: Path
) -> None:
    # What the hub's client would upload with; the stand-in speaks LFS only.
    assert importlib.util.find_spec("hf_xet") is not None
    published = command("publish", tiny_bundle, "someone/voice")
    assert published.returncode == 0, published.stderr
    assert f"{hub.address}/someone/voice/commit/" in published.stdout
    assert set(hub.repositories["someone/voice"]["main"]) == listed(tiny_bundle) | {".gitattributes"}

    spoken = []
    for bundle, output in ((tiny_bundle, "a.wav"), ("someone/voice", "b.wav")):
        options = ("--text", "one.", "--seed", 3, "--max-len", 4, "--precision", "int8", "--verify")
        if bundle == "someone/voice":
            options = options[:-1]
        done = command("generate", bundle, *options, "-o", tmp_path / output)
        assert done.returncode == 0, done.stderr
        spoken.append((tmp_path / output).read_bytes())
    assert spoken[0] == spoken[1]


def test_a_repository_without_a_manifest_is_named_by_its_id(hub: Hub, command: Command) -> None:
    hub.repositories["someone/checkpoint"] = {"main": {"config.json": b"{}"}}

    done = command("inspect", "someone/checkpoint")

    assert done.returncode == 2
    line = done.stderr.splitlines()[-1]  # the hub's client writes its own before
    assert line.startswith("error: someone/checkpoint: this repository of the hub is not a bundle")


def test_only_files_of_the_manifest_are_uploaded(carded: Path, hub: Hub, command: Command) -> None:
    (carded / "notes.txt").write_text("mine")
    (carded / ".env").write_text("secret")
    (carded / "fp16" / "stray.bin").write_text("stray")

    assert command("publish", carded, "someone/voice", "--private", "--message", "first").returncode == 0

    assert set(hub.repositories["someone/voice"]["main"]) == listed(carded) | {".gitattributes"}
    assert hub.private == {"someone/voice"}
    assert hub.messages == ["first"]
    downloaded = command("inspect", "someone/voice", "--verify", "--json")
    assert downloaded.returncode == 0, downloaded.stderr
    assert json.loads(downloaded.stdout)["source"]["checkpoint"] == "tiny"


def test_a_second_bundle_removes_what_only_the_first_had(carded: Path, hub: Hub, command: Command) -> None:
    compiled = carded / "int8" / "feat_encoder.mlmodelc" / "model.mil"
    compiled.parent.mkdir()
    compiled.write_text("an earlier model")
    _record_again(carded)
    assert command("publish", carded, "someone/voice").returncode == 0
    tree = hub.repositories["someone/voice"]["main"]
    assert "int8/feat_encoder.mlmodelc/model.mil" in tree
    tree["images/voice.png"] = b"not a folder of the bundle"
    shutil.rmtree(compiled.parent)
    _record_again(carded)

    assert command("publish", carded, "someone/voice").returncode == 0

    assert set(hub.repositories["someone/voice"]["main"]) == listed(carded) | {
        ".gitattributes",
        "images/voice.png",
    }


def test_an_interrupted_upload_is_continued(carded: Path, hub: Hub, command: Command) -> None:
    hub.refuses_commits = True
    refused = command("publish", carded, "someone/voice")
    assert refused.returncode == 2
    assert refused.stderr.splitlines()[-1].startswith("error: someone/voice: not published (403: ")
    assert "Traceback" not in refused.stderr
    files = Manifest.read(carded).files.values()
    assert set(hub.sent) >= {record.sha256 for record in files if record.bytes >= LARGE} > set()
    assert set(hub.repositories["someone/voice"]["main"]) == {".gitattributes"}
    hub.refuses_commits = False
    hub.sent.clear()

    assert command("publish", carded, "someone/voice").returncode == 0
    assert hub.sent == []
    assert set(hub.repositories["someone/voice"]["main"]) >= listed(carded)


def test_a_file_that_the_hub_leaves_out_is_an_error(carded: Path, hub: Hub, command: Command) -> None:
    hub.ignored = ".npy"

    refused = command("publish", carded, "someone/voice")

    assert refused.returncode == 2
    assert "the hub did not take constants/embed_tokens.npy" in refused.stderr
    assert ".gitignore" in refused.stderr


@pytest.mark.parametrize(
    ("token", "message"),
    [("hf_unknown", "401: the hub does not know the token"), (READER, "403: the token has no")],
)
def test_a_token_that_may_not_write_is_one_line(
    carded: Path, hub: Hub, command: Command, monkeypatch: pytest.MonkeyPatch, token: str, message: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)

    refused = command("publish", carded, "someone/voice")

    assert refused.returncode == 2
    assert message in refused.stderr
    assert refused.stderr.count("error:") == 1
    assert "Traceback" not in refused.stderr
    assert hub.repositories == {}


def test_a_dry_run_lists_the_files_and_asks_no_hub(
    carded: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.HfApi", None)

    assert cli.main(["publish", str(carded), "someone/voice", "--dry-run"]) == 0

    printed = capsys.readouterr()
    assert {line.split()[1] for line in printed.out.splitlines()} == listed(carded)
    assert "nothing was uploaded" in printed.err


@pytest.mark.parametrize("name", ["voice", "../voice"])
def test_a_name_that_is_no_hub_id(carded: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["publish", str(carded), name, "--dry-run"]) == 2
    assert "organisation/name" in capsys.readouterr().err


@pytest.mark.parametrize("linked", ["README.md", "fp16"])
def test_a_link_is_not_published(carded: Path, tmp_path: Path, linked: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    (carded / linked).rename(elsewhere)
    (carded / linked).symlink_to(elsewhere)

    with pytest.raises(BundleError, match="links are not published"):
        publishable_files(carded, Manifest.read(carded))


@pytest.mark.parametrize("path", ["../secret", "/etc/hostname", "fp16/.env"])
def test_a_listed_path_that_is_none_of_a_bundle(carded: Path, tmp_path: Path, path: str) -> None:
    (tmp_path / "secret").write_text("secret")
    manifest = Manifest.read(carded)
    record = next(iter(manifest.files.values()))

    with pytest.raises(BundleError, match="is not a path of a bundle's file"):
        publishable_files(carded, manifest.model_copy(update={"files": {path: record}}))


def test_a_branch_is_made_and_main_stays(carded: Path, hub: Hub, command: Command) -> None:
    assert command("publish", carded, "someone/voice", "--branch", "next").returncode == 0

    assert set(hub.repositories["someone/voice"]["next"]) >= listed(carded)
    assert set(hub.repositories["someone/voice"]["main"]) == {".gitattributes"}
