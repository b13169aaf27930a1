"""System errors are one line: closed streams, full disks, out of memory."""

import errno
import os
import subprocess
import sys
import warnings
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace

import pytest

from voxcpm_constants.errors import BundleError, warn
from voxcpm_constants.file_locks import lock_folder
from voxcpm_runtime.audio.files import FORMATS
from voxcpm_runtime.backends.portable import package
from voxcpm_runtime.bundle import opening
from voxcpm_runtime.commands import cli, shared_arguments

PROGRAM = "import sys; from voxcpm_runtime.commands.program import main; sys.exit(main())"


def run_into(output, *arguments):
    command = [sys.executable, "-c", PROGRAM, *arguments]
    return subprocess.run(command, stdout=output, stderr=subprocess.PIPE, check=False)


@pytest.fixture
def failing(monkeypatch):
    """failing(error): makes the command `fail` raise that."""

    def install(error):
        def fail() -> None:
            """Fail."""
            raise error

        monkeypatch.setitem(cli._RUNTIME_COMMANDS, "fail", EntryPoint("fail", "failing:fail", "group"))
        monkeypatch.setattr(EntryPoint, "load", lambda _: fail)

    return install


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "a/b"), "a/b: Permission denied"),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
        (RecursionError("maximum recursion depth exceeded"), "nested too deeply"),
        *(
            (error, "not enough memory")
            for error in (
                MemoryError(),
                ImportError("a.so: failed to map segment from shared object"),
                RuntimeError("unable to mmap 9 bytes from file <a>: Cannot allocate memory (12)"),
                RuntimeError("std::bad_alloc"),
                RuntimeError("could not create a primitive"),
                SystemError("error return without exception set"),
                SystemError("<function f at 0x7> returned NULL without setting an exception"),
            )
        ),
    ],
)
def test_system_error_is_one_line(refusal, failing, error, line):
    failing(error)
    assert refusal("fail") == f"error: {line}"


@pytest.mark.parametrize(
    "arguments",
    [
        ("generate", "--text", "a", "-o", "{}"),
        ("generate", "--{}"),
        ("{}",),
        ("generate", "--markup", "--text", "[{}]"),
        ("convert", "a", "-o", "b", "--precision", "{}"),
        ("inspect", "{}"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_message_is_short_whatever_was_passed(refusal, arguments):
    line = refusal(*(argument.replace("{}", "y" * 10**6) for argument in arguments))
    assert len(line) < 600
    assert "y" * 8 in line


def test_a_long_message_keeps_its_advice(folder, capsys):
    (folder / "lines.jsonl").write_text('{"text": "a", "' + "y" * 10**6 + '": 1}')
    assert cli.main(["batch", "lines.jsonl", "-o", "out"]) == 1
    line = capsys.readouterr().err.splitlines()[0]
    assert len(line) < 600
    assert line.startswith("line 1: unknown key 'yyy")
    assert line.endswith("trim_silence_vad")


def test_only_this_projects_warnings_are_shown(monkeypatch, run):
    def warning() -> None:
        """Warn."""
        warnings.warn("of a library", UserWarning, stacklevel=1)
        warn("ours, about " + "y" * 10**6)

    monkeypatch.setitem(cli._RUNTIME_COMMANDS, "fail", EntryPoint("fail", "failing:fail", "group"))
    monkeypatch.setattr(EntryPoint, "load", lambda _: warning)
    code, _, err = run("fail")
    (line,) = err.splitlines()
    assert (code, len(line) < 600) == (0, True)
    assert line.startswith("warning: ours, about yyy")


def test_few_descriptors_are_no_damage(monkeypatch):
    def refused(*_):
        raise BundleError("a.npy: it cannot be read") from OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(opening, "load_constants", refused)
    with pytest.raises(BundleError, match=r"^a.npy: it cannot be read$"):
        opening.open_bundle(None)


def test_a_read_only_file_system_is_named(refusal, folder, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_flag=os.ST_RDONLY))
    for name in ("new.wav", "old.wav"):
        (folder / "old.wav").touch()
        line = refusal("generate", "--text", "a", "-o", name)
        assert line == f"error: {name}: cannot be written (Read-only file system)"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    "arguments", [("voices", "list"), ("--help",), ("generate", "--text", "a.", "-o", "-")]
)
def test_a_full_disk_under_standard_output_is_named(arguments):
    with Path("/dev/full").open("w") as full:
        ran = run_into(full, *arguments)
    assert ran.returncode == 2
    assert ran.stderr.splitlines()[-1] == b"error: standard output: No space left on device"


@pytest.mark.parametrize("arguments", [("voices", "list"), ("generate", "--help"), ("inspect",)])
def test_a_reader_that_stops_ends_a_command_quietly(arguments):
    reading, writing = os.pipe()
    os.close(reading)
    ran = run_into(writing, *arguments)
    os.close(writing)
    assert (ran.returncode, ran.stderr) == (141, b"")


CTRL_C_AT_IMPORT = f"""
import sys
class Finder:
    def find_spec(self, name, *_):
        if name == "typer":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Finder())
{PROGRAM}
"""


def test_ctrl_c_is_one_line_even_during_the_first_imports(failing, run):
    ran = subprocess.run([sys.executable, "-c", CTRL_C_AT_IMPORT, "--help"], capture_output=True, check=False)
    assert (ran.returncode, ran.stderr) == (130, b"error: interrupted\n")
    failing(KeyboardInterrupt())
    assert run("fail") == (130, "", "error: interrupted\n")


@pytest.mark.parametrize("command", [("generate", "--text-file", "-"), ("batch", "-", "-o", "out")])
def test_closed_standard_input(refusal, speaking, monkeypatch, command):
    monkeypatch.setattr(shared_arguments.sys, "stdin", None)
    assert "standard input is closed" in refusal(command[0], speaking, *command[1:])


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


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open files as Linux does")
def test_what_cannot_be_mapped_for_lack_of_descriptors_is_named(tmp_path):
    import resource

    weights = tmp_path / package.WEIGHT_FILE
    weights.parent.mkdir(parents=True)
    weights.write_bytes(b"12")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
    taken = [os.dup(0) for _ in range(highest)]
    # One file may be opened, and its copy may not.
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(*taken, highest) + 2, limits[1]))
    try:
        with pytest.raises(OSError, match="Too many open files") as raised:
            package.map_weights(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for file in taken:
            os.close(file)
    assert raised.value.filename == str(weights)
