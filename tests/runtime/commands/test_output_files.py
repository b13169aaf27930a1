"""What has the name of an output: links are written through, pipes into, and what is no file is never replaced."""

from __future__ import annotations

import io
import os
import socket
import stat
import subprocess
import sys
import threading

import numpy as np
import pytest
import soundfile

from voxcpm_constants.errors import InputError
from voxcpm_runtime.audio.files import check_output_path, write_audio
from voxcpm_runtime.commands import cli
from voxcpm_runtime.storage.whole_file import report_folder

pytestmark = [
    pytest.mark.parametrize("architecture", ["voxcpm"], indirect=True),
    pytest.mark.usefixtures("architecture"),
]
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes devices, or gives files away")


@pytest.fixture(autouse=True)
def _inputs(folder, monkeypatch):
    monkeypatch.setenv("VOXCPM_COREML_VOICES", str(folder / "voices"))
    sound = np.random.default_rng(0).uniform(-0.5, 0.5, 100)
    soundfile.write("me.wav", sound, 1000, subtype="FLOAT")
    (folder / "there").mkdir()
    (folder / "lines.jsonl").write_text('{"text": "ab", "output": "a.wav", "seed": 1}\n')


RECORDING = ("--prompt", "me.wav", "--prompt-text", "so.")
COMMANDS = {
    # The output, and a command that writes it; with --overwrite it replaces also what is read-only.
    "generate": ("there/a.wav", ("generate", "{}", "--text", "ab", "--seed", "1", "-o", "there/a.wav")),
    "batch": ("there/a.wav", ("batch", "{}", "lines.jsonl", "-o", "there")),
    "voices add": ("voices/ada.voice", ("voices", "add", "ada", "{}", *RECORDING)),
}
each_command = pytest.mark.parametrize(("output", "command"), COMMANDS.values(), ids=COMMANDS)


@pytest.fixture
def run(speaking, capsys):
    """run(command, ...): its exit code and standard error."""

    def run(command, *more):
        code = cli.main([*(word.replace("{}", speaking) for word in command), *more])
        return code, capsys.readouterr().err

    return run


def written(content):
    """Whether it is an audio file or a voice, and not cut off."""
    if content[:4] == b"RIFF":
        return len(soundfile.read(io.BytesIO(content))[0]) > 0
    return b"latent_space" in content


def hidden(folder):
    return [path.name for path in folder.rglob(".*")]


@each_command
@pytest.mark.parametrize("target", ["a file", "a link to nothing"])
def test_a_link_is_written_through(run, folder, output, command, target):
    path, end = folder / output, folder / "elsewhere"
    path.parent.mkdir(exist_ok=True)
    if target == "a file":
        end.write_bytes(b"old")
    path.symlink_to(folder / "second" if target == "a link to nothing" else end)
    if target == "a link to nothing":
        (folder / "second").symlink_to("elsewhere")

    assert run(command, "--overwrite")[0] == 0

    assert path.is_symlink()
    assert not end.is_symlink()
    assert written(end.read_bytes())
    assert hidden(folder) == []


@each_command
def test_a_file_that_is_replaced_keeps_its_mode_and_owner(run, folder, output, command):
    path = folder / output
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"old")
    path.chmod(0o600)
    if os.geteuid() == 0:
        os.chown(path, 1234, 4321)
    before = path.stat()

    assert run(command, "--overwrite")[0] == 0

    after = path.stat()
    assert written(path.read_bytes())
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)


def test_a_read_only_file_is_replaced_only_when_asked(run, folder):
    path = folder / "there" / "a.wav"
    path.write_bytes(b"old")
    path.chmod(0o444)
    command = COMMANDS["generate"][1]

    assert run(command) == (
        2,
        "error: there/a.wav: cannot be written (it exists and is read-only; --overwrite replaces it)\n",
    )
    with pytest.raises(InputError, match="read-only"):
        write_audio(path, np.zeros(480, np.float32), 48_000)
    assert path.read_bytes() == b"old"

    assert run(command, "--overwrite")[0] == 0
    assert written(path.read_bytes())
    assert stat.S_IMODE(path.stat().st_mode) == 0o444


@each_command
def test_a_named_pipe_is_written_into(run, folder, output, command):
    path = folder / output
    path.parent.mkdir(exist_ok=True)
    os.mkfifo(path)
    read = []
    reader = threading.Thread(target=lambda: read.append(path.read_bytes()), daemon=True)
    reader.start()

    assert run(command, "--overwrite")[0] == 0

    reader.join(20)
    assert written(*read)
    assert path.is_fifo()
    assert hidden(folder) == []


@each_command
@pytest.mark.parametrize("kind", ["folder", "socket", pytest.param("block device", marks=as_root)])
def test_what_can_be_neither_replaced_nor_written_into_is_one_line(run, folder, output, command, kind):
    path = folder / output
    path.parent.mkdir(exist_ok=True)
    if kind == "folder":
        path.mkdir()
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(output)
    else:
        os.mknod(path, stat.S_IFBLK | 0o600, os.makedev(7, 200))
    before = path.lstat().st_mode

    code, err = run(command, "--overwrite", "-q")

    assert code == (1 if "batch" in command else 2)  # one line of a batch failed
    assert f"it is a {kind}" in err
    assert err.count("\n") == 1
    assert path.lstat().st_mode == before


def test_a_pipe_of_the_shell_gets_a_wav_file_and_nothing_else(run, folder):
    receiving, sending = os.pipe()
    generate = COMMANDS["generate"][1][:-1]

    assert run((*generate, f"/dev/fd/{sending}"))[0] == 0

    os.close(sending)
    with os.fdopen(receiving, "rb") as pipe:
        assert written(pipe.read())
    (folder / "link").symlink_to("/dev/stdout")
    with open("spoken", "wb") as spoken:  # noqa: PTH123
        spoken.write(b"before")
        spoken.flush()
        program = "from voxcpm_runtime.audio.files import *; write_audio('link', np.zeros(48), 48000)"
        subprocess.run([sys.executable, "-c", program], stdout=spoken, check=True)
    assert (folder / "spoken").read_bytes()[:10] == b"beforeRIFF"
    assert (folder / "link").is_symlink()
    with pytest.raises(InputError, match="Bad file descriptor"):
        check_output_path("/dev/fd/999")


def same_file(folder, how):
    """Another name of me.wav that ends in .wav."""
    if how == "link":
        (folder / "name.wav").symlink_to("me.wav")
    elif how == "hard link":
        os.link("me.wav", "name.wav")
    return "there/../me.wav" if how == "other path" else "name.wav"


@pytest.mark.parametrize("how", ["other path", "link", "hard link"])
@pytest.mark.parametrize(
    "arguments",
    [
        ("clone", "absent", *RECORDING, "--text", "ab", "-o", "{}"),
        ("clone", "absent", "--reference", "me.wav", "--text", "ab", "-o", "{}"),
        ("generate", "absent", "--text-file", "me.wav", "-o", "{}"),
        ("generate", "absent", "--voice", "./me.wav", "--text", "ab", "-o", "{}"),
        ("voices", "add", "ada", "absent", "--prompt", "{}", "--overwrite"),
    ],
    ids=lambda arguments: " ".join(arguments[:4]),
)
def test_an_output_that_is_an_input_is_refused_before_anything_is_read(run, folder, arguments, how):
    name = same_file(folder, how)
    if arguments[0] == "voices":
        (folder / "voices").mkdir()
        (folder / "voices" / "ada.voice").symlink_to("../me.wav")
    before = (folder / "me.wav").read_bytes()

    code, err = run(tuple(argument.replace("{}", name) for argument in arguments))

    assert code == 2
    assert "this is also an input (" in err
    assert err.count("\n") == 1
    assert (folder / "me.wav").read_bytes() == before


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "a", "prompt": "me.wav", "prompt_text": "so.", "output": "link.wav"}', "link.wav: this is also"),
        ('{"text": "a", "voice": "./ada.voice", "output": "voice.wav"}', "voice.wav: this is also an input"),
        ('{"text": "a", "output": "lines.wav"}', "lines.wav: this is also an input (lines.jsonl)"),
        ('{"text": "a", "output": "b.wav"}\n{"text": "b", "output": "to_b.wav"}', "lines 1 and 2 have the same"),
    ],
)  # fmt: skip
def test_a_line_of_a_batch_whose_output_is_its_input(run, folder, tts, line, message):
    tts.create_voice("me.wav", "so.", name="ada").save("ada.voice")
    names = {"link": "me.wav", "voice": "ada.voice", "lines": "lines.jsonl", "to_b": "b.wav"}
    for name, target in names.items():
        (folder / f"{name}.wav").symlink_to(target)
    (folder / "lines.jsonl").write_text(f"{line}\n")
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}

    code, err = run(("batch", "{}", "lines.jsonl", "-o", ".", "--overwrite"))

    assert code == 2
    assert message in err
    assert err.count("\n") == 1
    assert {path: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


def test_a_report_replaces_none_of_its_inputs(folder):
    (folder / "there" / "a.json").symlink_to("../lines.jsonl")
    for inputs in (["lines.jsonl"], [None, folder / "there"]):
        with pytest.raises(InputError, match="this is also an input"):
            report_folder(folder / "there", ["a.json"], inputs)
    report_folder(folder / "there", ["a.json"], ["me.wav"])
    (folder / "lines.jsonl").chmod(0o444)
    with pytest.raises(PermissionError, match="read-only"):
        report_folder(folder / "there", ["a.json"], [])
