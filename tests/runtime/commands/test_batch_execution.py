"""Where a batch is spoken: executors of other packages, which take lines one after the other."""

import sys
from types import SimpleNamespace

import pytest

from voxcpm_runtime.commands import batch_execution
from voxcpm_runtime.commands.batch_execution import SpokenFile

SPOKEN = SpokenFile(
    content=b"a file", seed=5, audio_seconds=1, samples=9, suspicious={}, summary="1 s of speech"
)


@pytest.fixture
def elsewhere(monkeypatch):
    """elsewhere(executor): `--ray` speaks with this executor; returns what its maker was given."""

    def made(executor):
        given = []
        entry = SimpleNamespace(load=lambda: lambda *arguments: given.append(arguments) or executor)
        monkeypatch.setattr(batch_execution, "entry_points", lambda **wanted: [entry])
        return given

    return made


def test_an_executor_gives_files_which_the_command_writes_and_records(batch, folder, elsewhere, loads):
    def executor(tasks, _cancel, _note, warn):
        for task in tasks:
            warn(task.line.line, "a remark")
            yield task, SPOKEN

    given = elsewhere(executor)
    code, out, err = batch(["one.", "two."], "--ray", "HOST:1", name="lines.txt")

    assert code == 0
    assert given[0][0] == "HOST:1"
    assert not loads
    assert (folder / "out" / "output_002.wav").read_bytes() == b"a file"
    assert out.splitlines()[-1] == "2 spoken, 0 skipped (already there), 0 failed"
    assert err == "line 1: warning: a remark\nline 2: warning: a remark\n"
    assert batch(["one.", "two."], "--ray", "HOST:1", name="lines.txt")[1].startswith("0 spoken, 2 skipped")


def test_without_ray_it_names_the_extra(batch, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "voxcpm_server.cluster.batch", raising=False)
    monkeypatch.delitem(sys.modules, "voxcpm_server.cluster.cluster", raising=False)

    code, _, err = batch(["one."], "--ray", "auto", name="lines.txt")

    assert (code, err) == (2, 'error: batch needs ray; install it with: pip install "voxcpm-coreml[ray]"\n')


@pytest.mark.parametrize("ends", ["\n", "\r\n", "\r"])
def test_every_end_of_a_line_counts(batch, folder, ends):
    (folder / "lines.txt").write_bytes(f"{ends}one.{ends}{ends}two.".encode())

    assert batch(None, name="lines.txt")[0] == 0
    assert sorted(path.name for path in (folder / "out").glob("*.wav")) == [
        "output_002.wav",
        "output_004.wav",
    ]
