"""System errors are one line: closed streams, full disks, out of memory."""

import errno
import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

from voxcpm_constants.file_locks import lock_folder
from voxcpm_runtime.audio.files import FORMATS
from voxcpm_runtime.commands import cli, shared_arguments


def raising(error):
    def command() -> None:
        """Fail."""
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "a/b"), "a/b: Permission denied"),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
        (RecursionError("maximum recursion depth exceeded"), "nested too deeply"),
        (MemoryError(), "not enough memory"),
        (ImportError("a.so: failed to map segment from shared object"), "not enough memory"),
    ],
)
def test_system_error_is_one_line(refusal, monkeypatch, error, line):
    monkeypatch.setitem(cli._RUNTIME_COMMANDS, "fail", EntryPoint("fail", "failing:fail", "group"))
    monkeypatch.setattr(EntryPoint, "load", lambda entry: raising(error))

    assert refusal("fail") == f"error: {line}"


def test_ctrl_c_is_one_line(monkeypatch, capsys):
    monkeypatch.setitem(cli._RUNTIME_COMMANDS, "fail", EntryPoint("fail", "failing:fail", "group"))
    monkeypatch.setattr(EntryPoint, "load", lambda entry: raising(KeyboardInterrupt()))

    assert cli.main(["fail"]) == 130
    assert capsys.readouterr().err == "error: interrupted\n"


@pytest.mark.parametrize("command", [("generate", "--text-file", "-"), ("batch", "-", "-o", "out")])
def test_closed_standard_input(refusal, speaking, monkeypatch, command):
    monkeypatch.setattr(shared_arguments.sys, "stdin", None)

    line = refusal(command[0], speaking, *command[1:])

    assert "standard input is closed" in line


_FULL_DISK = """
import resource, signal, sys
import numpy as np
from voxcpm_runtime.audio.files import write_audio
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
for path in sys.argv[1:]:
    try:
        write_audio(path, np.random.default_rng(0).uniform(-0.5, 0.5, 48000).astype(np.float32), 48000)
    except ValueError as error:
        print(error)
"""


def test_a_full_disk_is_one_line_in_every_format(tmp_path):
    paths = [f"{tmp_path}/a{ending}" for ending in FORMATS]

    done = subprocess.run(
        [sys.executable, "-c", _FULL_DISK, *paths], capture_output=True, text=True, check=True
    )

    assert done.stdout.splitlines() == [f"{path}: cannot be written (File too large)" for path in paths]
    assert (done.stderr, list(tmp_path.iterdir())) == ("", [])


def test_second_run_into_one_output_is_rejected(speaking, folder, refusal):
    held = folder / ".a.wav.segments"
    held.mkdir()
    lock = lock_folder(held)

    line = refusal("generate", speaking, "--text", "hi.", "-o", "a.wav")

    assert "another run is writing to this file" in line
    lock.release()
    assert cli.main(["generate", speaking, "--text", "hi.", "-o", "a.wav", "-q"]) == 0
    assert [path.name for path in folder.iterdir()] == ["a.wav"]


@pytest.mark.parametrize(
    ("report", "message"),
    [
        ("in.json", "in.json: the folder cannot be created"),
        ("folders", "listening.json: it is a folder"),
        ("linked", "linked/listening.json: this is also an input"),
    ],
)
def test_unwritable_report_fails_before_the_work(refusal, folder, report, message):
    (folder / "in.json").touch()
    (folder / "folders" / "listening.json").mkdir(parents=True)
    (folder / "linked").mkdir()
    (folder / "linked" / "listening.json").symlink_to("../in.json")

    assert message in refusal("listen", "--saved", "in.json", "--report", report)
    assert (folder / "in.json").read_bytes() == b""
