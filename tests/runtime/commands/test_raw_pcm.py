import os
import select
import subprocess
import sys

import numpy as np
import pytest

from voxcpm_constants.errors import InputError
from voxcpm_runtime.commands.raw_pcm import check_standard_output

# Chunks of 1000 samples, less than the buffer holds: -0.5, 0, 0.5, …; if it waits, each comes after a line of input.
PROGRAM = """
import sys
import numpy as np
import typer
from voxcpm_runtime.commands.raw_pcm import write_raw_pcm

def command(count: int, quiet: bool = False, waits: bool = False) -> None:
    def chunks():
        for i in range(count):
            if waits:
                sys.stdin.readline()
            print("chunk", i, file=sys.stderr, flush=True)
            yield np.full(1000, (i - 1) / 2, np.float32)
    written = write_raw_pcm(chunks(), 16000, quiet=quiet)
    print(written, file=sys.stderr)

typer.run(command)
"""


def run(*arguments, **streams):
    # Standard output is buffered, as by default.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-c", PROGRAM, *arguments]
    return subprocess.Popen(command, stderr=subprocess.PIPE, env=environment, **streams)


def test_chunks_become_little_endian_samples():
    process = run("4", stdout=subprocess.PIPE)
    out, err = process.communicate(timeout=60)

    assert process.returncode == 0
    samples = np.frombuffer(out, "<i2").reshape(4, 1000)
    # -0.5, 0, 0.5 and 1.
    assert [set(row.tolist()) for row in samples] == [{-16384}, {0}, {16384}, {32767}]
    assert err.decode().splitlines()[0] == "raw PCM: 16-bit little-endian, mono, 16000 Hz"
    assert err.decode().splitlines()[-1] == "Written(samples=4000, clipped=0)"


def test_each_chunk_is_heard_before_the_next_is_made():
    process = run("3", "--waits", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    for _ in range(3):
        process.stdin.write(b"go on\n")
        process.stdin.flush()
        readable, _, _ = select.select([process.stdout], [], [], 60)
        assert readable
        assert len(process.stdout.read(2000)) == 2000
    process.communicate(timeout=60)

    assert process.returncode == 0


def test_a_reader_that_goes_ends_the_command_without_a_word():
    process = run("1000", stdout=subprocess.PIPE)
    process.stdout.read(100)
    process.stdout.close()
    err = process.stderr.read().decode()
    process.stderr.close()

    # A shell reports the same for `yes | head`: 128 + 13.
    assert process.wait(timeout=60) == 141
    said = [line for line in err.splitlines() if not line.startswith("chunk ")]
    assert said == ["raw PCM: 16-bit little-endian, mono, 16000 Hz"]
    # A pipe holds about 64 KiB, so at most a few of a thousand chunks are made.
    assert len(err.splitlines()) < 200


def test_a_terminal_and_no_output_at_all_are_refused(monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    with pytest.raises(InputError, match=r"a terminal; pipe it into a player, as in: … \| aplay .* -r 44100"):
        check_standard_output(44100)
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(InputError, match="no standard output"):
        check_standard_output(44100)
