"""Publishing a bundle on the hub and opening it, with an in-memory fake on loopback."""

import importlib.util
import json
import shutil

import pytest

from hub_stand_in import LARGE, READER
from voxcpm_constants.manifest import Manifest, record_folder
from voxcpm_runtime.commands import cli

# What is published does not depend on the generation.
pytestmark = [
    pytest.mark.parametrize("architecture", ["voxcpm"], indirect=True),
    pytest.mark.usefixtures("architecture"),
]


def record_again(folder):
    files = {name: record for name, record in record_folder(folder).items() if "/" in name}
    Manifest.read(folder).model_copy(update={"files": files}).write(folder)


@pytest.fixture
def carded(bundle_folder):
    """A bundle with a card and a file that the fake hub stores in LFS."""
    (bundle_folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n\n# Tiny\n")
    (bundle_folder / "fp16" / "locdit_step.mlpackage" / "Manifest.json").write_bytes(b"w" * (2 * LARGE))
    record_again(bundle_folder)
    return bundle_folder


def listed(folder):
    return {*Manifest.read(folder).files, "manifest.json", "manifest.sha256", "README.md"}


def test_published_bundle_round_trips(tiny_bundle, hub, command, tmp_path):
    # The hub's client would upload with it; the fake supports LFS only.
    assert importlib.util.find_spec("hf_xet") is not None
    published = command("publish", tiny_bundle, "someone/voice")
    assert published.returncode == 0, published.stderr
    assert f"{hub.address}/someone/voice/commit/" in published.stdout
    assert set(hub.repositories["someone/voice"]["main"]) == listed(tiny_bundle) | {".gitattributes"}
    spoken = []
    options = ("--text", "one.", "--seed", 3, "--max-len", 4, "--precision", "int8")
    for bundle, output in ((tiny_bundle, "a.wav"), ("someone/voice", "b.wav")):
        done = command("generate", bundle, *options, "-o", tmp_path / output)
        assert done.returncode == 0, done.stderr
        spoken.append((tmp_path / output).read_bytes())
    assert spoken[0] == spoken[1]


def test_a_repository_without_a_manifest_is_named_by_its_id(hub, command):
    fluid = {"int8/base_lm_step.mlpackage/Manifest.json": b"{}", "int8/weight.bin": b"w" * LARGE}
    hub.repositories["someone/checkpoint"] = {"main": {"config.json": b"{}"}}
    hub.repositories["someone/fluid"] = {"main": fluid}
    for name, message in (
        ("checkpoint", "not a bundle"),
        ("fluid", "has packages but no manifest.json, as in"),
    ):
        done = command("inspect", f"someone/{name}")
        assert done.returncode == 2
        line = done.stderr.splitlines()[-1]  # the hub's client writes its own before
        assert line.startswith(f"error: someone/{name}: {message}")


def test_only_files_of_the_manifest_are_uploaded(carded, hub, command):
    (carded / "notes.txt").write_text("mine")
    (carded / ".env").write_text("secret")
    (carded / "fp16" / "stray.bin").write_text("stray")
    assert command("publish", carded, "someone/other", "--branch", "next").returncode == 0
    assert set(hub.repositories["someone/other"]["next"]) >= listed(carded)
    assert set(hub.repositories["someone/other"]["main"]) == {".gitattributes"}
    hub.messages.clear()
    published = command("publish", carded, "someone/voice", "--private", "--message", "first", "--json")
    assert published.returncode == 0
    assert json.loads(published.stdout)["commit"].startswith("http")
    assert set(hub.repositories["someone/voice"]["main"]) == listed(carded) | {".gitattributes"}
    assert hub.private == {"someone/voice"}
    assert hub.messages == ["first"]
    downloaded = command("inspect", "someone/voice", "--verify", "--json")
    assert downloaded.returncode == 0, downloaded.stderr
    assert json.loads(downloaded.stdout)["source"]["checkpoint"] == "tiny"


def test_republishing_removes_stale_files(carded, hub, command):
    compiled = carded / "int8" / "feat_encoder.mlmodelc" / "model.mil"
    compiled.parent.mkdir()
    compiled.write_text("an earlier model")
    record_again(carded)
    hub.defaults_to_private = True
    assert command("publish", carded, "someone/voice").returncode == 0
    assert hub.private == {"someone/voice"}
    tree = hub.repositories["someone/voice"]["main"]
    assert "int8/feat_encoder.mlmodelc/model.mil" in tree
    tree["images/voice.png"] = b"not a folder of the bundle"
    shutil.rmtree(compiled.parent)
    record_again(carded)
    assert command("publish", carded, "someone/voice").returncode == 0
    others = {".gitattributes", "images/voice.png"}
    assert set(hub.repositories["someone/voice"]["main"]) == listed(carded) | others


@pytest.mark.parametrize(
    ("token", "ignored", "message"),
    [
        ("", ".npy", "the hub left out constants/embed_tokens.npy"),
        ("hf_unknown", None, "401: invalid token"),
        (READER, None, "403: the token has no"),
    ],
)
def test_a_refused_upload_is_a_one_line_error(carded, hub, command, monkeypatch, token, ignored, message):
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    else:
        hub.ignored = ignored
    refused = command("publish", carded, "someone/voice")
    assert refused.returncode == 2
    assert message in refused.stderr
    assert refused.stderr.count("error:") == 1
    assert "Traceback" not in refused.stderr
    assert hub.repositories == {} or (".gitignore" in refused.stderr and ignored)


def test_a_dry_run_checks_and_lists_the_files_without_the_hub(carded, tmp_path, capsys, refusal, monkeypatch):
    monkeypatch.setattr("huggingface_hub.HfApi", None)
    assert cli.main(["publish", str(carded), "someone/voice", "--dry-run"]) == 0
    printed = capsys.readouterr()
    assert {line.split()[1] for line in printed.out.splitlines()} == listed(carded)
    assert "nothing was uploaded" in printed.err
    assert cli.main(["publish", str(carded), "someone/voice", "--dry-run", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["commit"] is None
    assert document["files"].keys() == listed(carded)
    assert "organisation/name" in refusal("publish", carded, "voice", "--dry-run")
    package = carded / "fp16" / "locdit_step.mlpackage" / "Manifest.json"
    content = package.read_bytes()
    package.write_bytes(bytes(len(content)))
    assert "content differs" in refusal("publish", carded, "someone/voice", "--dry-run")
    package.write_bytes(content)
    # The card has no digest, so a link could publish any file.
    (tmp_path / "secret").write_text("secret")
    (carded / "README.md").unlink()
    (carded / "README.md").symlink_to(tmp_path / "secret")
    assert "links are not published" in refusal("publish", carded, "someone/voice", "--dry-run")
