"""Ctrl-C and pipes, with the command line in a subprocess."""

import os
import select
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import soundfile

from voxcpm_runtime.audio.pcm import pcm16
from voxcpm_runtime.commands import cli
from voxcpm_runtime.voxcpm import VoxCPM

BOOK = "\n\n".join(f"It was the {day} day of the week. Nobody said a word about it." for day in (
    "first", "second", "third", "fourth", "last"
))  # fmt: skip
PROGRAM = "import sys; from voxcpm_runtime.commands.program import main; sys.exit(main())"


@pytest.fixture
def book(tmp_path):
    (tmp_path / "book.txt").write_text(BOOK, encoding="utf-8")
    return tmp_path / "book.txt"


@pytest.fixture(scope="module")
def whole(speaking_bundle):
    """The speech of the book without interruption."""
    return VoxCPM.from_bundle(speaking_bundle).speak(BOOK, seed=6)


def command(*arguments):
    return [sys.executable, "-c", PROGRAM, *map(str, arguments)]


def interrupted(given, folder, ready):
    """Interrupt the command when `ready` matches a file in the folder, hidden or not."""
    with subprocess.Popen(
        given, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        deadline = time.monotonic() + 120
        while not list(folder.glob(ready)) and time.monotonic() < deadline:
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    return process.returncode, out, err


@pytest.mark.robustness
def test_interrupted_book_leaves_no_partial_file_and_resumes(speaking_bundle, whole, book, tmp_path):
    speak = command("generate", speaking_bundle, "--text-file", book, "--seed", 6, "-o", "book.wav")
    code, _, err = interrupted(speak, tmp_path, ".book.wav.segments/00001.segment")
    assert code == 130
    assert "error: interrupted: book.wav was not written; " in err
    assert "segments are saved: run the same command to resume" in err
    assert not (tmp_path / "book.wav").exists()
    done = subprocess.run(speak, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert len(whole.segments) > 3
    samples, _ = soundfile.read(tmp_path / "book.wav", dtype="int16")
    np.testing.assert_array_equal(samples, pcm16(whole.audio))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["book.txt", "book.wav"]


def test_what_was_spoken_before_an_interruption_can_be_saved(speaking_bundle, whole, book, tmp_path):
    speak = command(
        "generate", speaking_bundle, "--text-file", book, "--keep-partial", "--seed", 6, "-o", "a.wav"
    )
    code, out, err = interrupted(speak, tmp_path, ".a.wav.segments/00001.segment")
    assert code == 130
    assert "interrupted: a.wav is incomplete" in err
    samples, _ = soundfile.read(tmp_path / "a.wav", dtype="int16")
    assert 0 < len(samples) < len(whole.audio)
    np.testing.assert_array_equal(samples, pcm16(whole.audio[: len(samples)]))
    assert out.startswith("a.wav: ")


def test_pipe_receives_samples_as_they_are_generated(speaking_bundle):
    given = ("generate", speaking_bundle, "--text", "Good morning to you.", "--seed", 5, "-o", "-")
    done = subprocess.run(command(*given), capture_output=True, timeout=300, check=False)
    tts = VoxCPM.from_bundle(speaking_bundle)
    audio = np.concatenate(list(tts.generate_streaming("Good morning to you.", seed=5)))
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.frombuffer(done.stdout, "<i2"), pcm16(audio))
    lines = done.stderr.decode().splitlines()
    assert lines[0] == f"raw PCM: 16-bit little-endian, mono, {tts.sample_rate} Hz"
    assert lines[-1] == f"{len(audio) / tts.sample_rate:.2f} s of speech"


@pytest.mark.parametrize("times", [1, 3])
def test_interrupted_pipe_has_whole_frames_and_ends_quietly(speaking_bundle, book, times):
    given = command("generate", speaking_bundle, "--text-file", book, "--seed", 6, "-o", "-")
    with subprocess.Popen(given, bufsize=0, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        received = process.stdout.read(2)
        for _ in range(times):
            os.kill(process.pid, signal.SIGINT)
            time.sleep(0.02)
        rest, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err.decode()
    assert err.decode().splitlines()[-1] == "error: interrupted"
    samples = np.frombuffer(received + rest, "<i2")
    audio = np.concatenate(list(VoxCPM.from_bundle(speaking_bundle).generate_streaming(BOOK, seed=6)))
    assert len(samples) < len(audio)
    np.testing.assert_array_equal(samples, pcm16(audio[: len(samples)]))


# Four chunks of 1000 samples, less than the buffer holds; each is made after a line of input.
CHUNKS = """
import sys
import numpy as np
from voxcpm_runtime.commands.cli import main
from voxcpm_runtime.voxcpm import VoxCPM

def chunks(*_, **__):
    for number in range(int(sys.argv[2])):
        if sys.argv[3] == "waits":
            sys.stdin.readline()
        print("chunk", file=sys.stderr, flush=True)
        yield np.full(1000, 0.5, np.float32)

VoxCPM.stream_plan = chunks
sys.exit(main(["generate", sys.argv[1], "--text", "hi.", "-o", "-"]))
"""


def piped_chunks(*arguments):
    # Standard output is buffered, as by default.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    given = [sys.executable, "-c", CHUNKS, *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(given, stdin=pipe, stdout=pipe, stderr=pipe, env=environment)


def test_chunks_are_written_immediately(speaking_bundle):
    process = piped_chunks(speaking_bundle, 3, "waits")
    for _ in range(3):
        process.stdin.write(b"next\n")
        process.stdin.flush()
        readable, _, _ = select.select([process.stdout], [], [], 60)
        assert readable
        assert len(process.stdout.read(2000)) == 2000
    process.communicate(timeout=60)
    assert process.returncode == 0


def test_closed_pipe_exits_silently(speaking_bundle):
    process = piped_chunks(speaking_bundle, 1000, "at once")
    process.stdout.read(100)
    process.stdout.close()
    lines = process.stderr.read().decode().splitlines()
    process.communicate()
    # A shell reports the same for `yes | head`: 128 + 13.
    assert process.returncode == 141
    rate = VoxCPM.from_bundle(speaking_bundle).sample_rate
    assert [line for line in lines if line != "chunk"] == [f"raw PCM: 16-bit little-endian, mono, {rate} Hz"]
    # A pipe holds about 64 KiB, so at most a few of a thousand chunks are made.
    assert len(lines) < 200


def test_terminal_and_closed_streams(speaking, monkeypatch, capsys, tmp_path):
    given = ["generate", speaking, "--text", "hi.", "-o", "-"]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert cli.main(given) == 2
    assert "a terminal; pipe it into a player, as in: … | aplay" in capsys.readouterr().err
    monkeypatch.setattr(sys, "stdout", None)
    assert cli.main(given) == 2
    assert "standard output is closed" in capsys.readouterr().err
    monkeypatch.setattr(sys, "stderr", None)
    assert cli.main(["generate", speaking, "--text", "hi.", "-o", str(tmp_path / "a.wav")]) == 0
    assert (tmp_path / "a.wav").is_file()
    assert cli.main(["generate", speaking, "--text", " ", "-o", str(tmp_path / "b.wav")]) == 2


LEFT_OPEN = """
import sys, time
from voxcpm_runtime import VoxCPM
tts = VoxCPM.from_bundle(sys.argv[1], precision="int8")
sessions = [tts.session(seed=seed) for seed in range(4)]
for session in sessions:
    session.push_text("Hello there, my good old friend. " * 5)
sessions[0].next_audio_chunk()
raise SystemExit("an error")
"""


def test_program_may_exit_while_sessions_speak(speaking_bundle):
    """Threads that Python ends within ONNX Runtime's C++ would abort the process."""
    given = [sys.executable, "-c", LEFT_OPEN, str(speaking_bundle)]
    ended = subprocess.run(given, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (1, "an error\n")
