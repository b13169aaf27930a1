"""Output paths: symbolic links are followed, pipes are written to, and only files are replaced."""

import io
import os
import socket
import stat
import threading

import numpy as np
import pytest
import soundfile

from voxcpm_constants.errors import InputError
from voxcpm_runtime.audio.files import write_audio
from voxcpm_runtime.commands import cli

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
    (folder / "voices").mkdir()
    (folder / "lines.jsonl").write_text('{"text": "ab", "output": "a.wav", "seed": 1}\n')


RECORDING = ("--prompt", "me.wav", "--prompt-text", "so.")
GENERATE = ("generate", "{}", "--text", "ab", "--seed", "1", "-o", "there/a.wav")
COMMANDS = {
    # An output and a command that writes it; --overwrite also replaces a read-only file.
    "generate": ("there/a.wav", GENERATE),
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
    """Whether it is a complete audio file or voice."""
    if content[:4] == b"RIFF":
        return len(soundfile.read(io.BytesIO(content))[0]) > 0
    return b"latent_space" in content


@each_command
@pytest.mark.parametrize("target", ["file", "dangling link"])
def test_symbolic_link_is_followed(run, folder, output, command, target):
    path, end = folder / output, folder / "elsewhere"
    if target == "file":
        end.write_bytes(b"old")
        path.symlink_to(end)
    else:
        path.symlink_to(folder / "second")
        (folder / "second").symlink_to("elsewhere")
    assert run(command, "--overwrite")[0] == 0
    assert path.is_symlink()
    assert not end.is_symlink()
    assert written(end.read_bytes())
    assert not list(folder.rglob(".*"))


@each_command
def test_a_file_that_is_replaced_keeps_its_mode_and_owner(run, folder, output, command):
    path = folder / output
    path.write_bytes(b"old")
    path.chmod(0o600)
    if os.geteuid() == 0:
        os.chown(path, 1234, 4321)
    before = path.stat()
    assert run(command, "--overwrite")[0] == 0
    after = path.stat()
    assert written(path.read_bytes())
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)


def test_read_only_file_is_replaced_only_on_request(run, folder):
    path = folder / "there" / "a.wav"
    path.write_bytes(b"old")
    path.chmod(0o444)
    code, err = run(GENERATE)
    assert code == 2
    assert err.endswith("a.wav: cannot be written (it exists and is read-only; --overwrite replaces it)\n")
    with pytest.raises(InputError, match="read-only"):
        write_audio(path, np.zeros(480, np.float32), 48_000)
    assert path.read_bytes() == b"old"
    assert run(GENERATE, "--overwrite")[0] == 0
    assert written(path.read_bytes())
    assert stat.S_IMODE(path.stat().st_mode) == 0o444


@each_command
def test_a_named_pipe_is_written_into(run, folder, output, command):
    path = folder / output
    os.mkfifo(path)
    content = []
    reader = threading.Thread(target=lambda: content.append(path.read_bytes()), daemon=True)
    reader.start()
    assert run(command, "--overwrite")[0] == 0
    reader.join(20)
    assert written(*content)
    assert path.is_fifo()
    assert not list(folder.rglob(".*"))


@each_command
@pytest.mark.parametrize("kind", ["folder", "socket", pytest.param("block device", marks=as_root)])
def test_unwritable_output_is_a_one_line_error(run, folder, output, command, kind):
    path = folder / output
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


def test_shell_pipe_receives_only_a_wav_file(run):
    receiving, sending = os.pipe()
    code, err = run((*GENERATE[:-1], f"/dev/fd/{sending}"))
    assert code == 0
    # The pipe may be standard output, so the summary is not there.
    assert f"/dev/fd/{sending}: " in err
    os.close(sending)
    with os.fdopen(receiving, "rb") as pipe:
        assert written(pipe.read())


@pytest.mark.parametrize(
    ("arguments", "how"),
    [
        (("clone", "absent", *RECORDING, "--text", "ab", "-o", "{}"), "other path"),
        (("clone", "absent", "--reference", "me.wav", "--text", "ab", "-o", "{}"), "link"),
        (("generate", "absent", "--text-file", "me.wav", "-o", "{}"), "hard link"),
        (("generate", "absent", "--voice", "./me.wav", "--text", "ab", "-o", "{}"), "link"),
        (("voices", "add", "ada", "absent", "--prompt", "{}", "--overwrite"), "hard link"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value[:4]),
)
def test_output_equal_to_an_input_is_rejected_before_reading(run, folder, arguments, how):
    name = "there/../me.wav" if how == "other path" else "name.wav"
    if how == "link":
        (folder / name).symlink_to("me.wav")
    elif how == "hard link":
        os.link("me.wav", name)
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
