import resource
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile


@pytest.fixture
def refused(speaking, folder, loads, refusal):
    """refused(*arguments): the error of `generate` before anything is loaded."""

    def run(*arguments):
        line = refusal("generate", speaking, "-o", "out.wav", *arguments)
        assert not loads
        assert not (folder / "out.wav").exists()
        return line

    return run


@pytest.mark.parametrize("given", [["--text-file"], ["--text", "hi.", "--prompt-text", "a", "--prompt"]])
def test_device_files_are_rejected(refused, given):
    assert "it is neither a file nor a pipe" in refused(*given, "/dev/zero")


@pytest.mark.parametrize("architecture", ["voxcpm"], indirect=True)
def test_small_file_with_too_many_samples_is_rejected(refused):
    """Half a megabyte with 914 MB of samples, of which 230 MB are decoded."""
    with soundfile.SoundFile("long.flac", "w", 192_000, 1, "PCM_16") as file:
        for _ in range(1190 * 192_000 >> 20):
            file.write(np.zeros(1 << 20, np.int16))
    assert Path("long.flac").stat().st_size < 1 << 20
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    err = refused("--text", "hi.", "--prompt", "long.flac", "--prompt-text", "a")
    assert "long.flac: longer than 300 s, the maximum for a recording at 192000 Hz; shorten it, or" in err
    # Bytes on macOS, else kilobytes.
    unit = 1 if sys.platform == "darwin" else 1024
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * unit < 400e6


def test_text_over_the_limit_is_rejected(refused, folder, monkeypatch):
    monkeypatch.setattr("voxcpm_runtime.commands.shared_arguments.MAX_TEXT_BYTES", 10)
    monkeypatch.setattr("voxcpm_runtime.argument_types.MAX_CHARACTERS", 10)
    (folder / "long.txt").write_text("ten of them")
    assert "it is larger than 10 bytes" in refused("--text-file", "long.txt")
    assert "the text has 11 characters; expected at most 10" in refused("--text", "ten of them")
