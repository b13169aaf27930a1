"""Files that may not be read are one line, and a record that cannot be parsed is made anew."""

import os
import subprocess
import sys

import pytest

DEEP = "[" * 100_000 + "]" * 100_000


# Root keeps its files, but not its rights to pass over their permissions (CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH).
_WITHOUT_RIGHTS = """
import ctypes, os, sys
if os.geteuid() == 0 and sys.platform == "linux":
    libc, header, sets = ctypes.CDLL(None), (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, sets) == 0
    sets[0] &= ~0b110
    assert libc.capset(header, sets) == 0
from voxcpm_runtime.commands.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.skipif(sys.platform != "linux" and os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("what", ["manifest.json", "tokenizer/tokenizer.json", "a.voice", "."])
def test_what_may_not_be_read_is_one_line(bundle_folder, tmp_path, what):
    """A file of a bundle, its folder, or a voice."""
    voice = tmp_path / "a.voice"
    voice.write_bytes(b"x")
    path = voice if what == "a.voice" else bundle_folder / what
    path.chmod(0o000)
    try:
        given = ["generate", bundle_folder, "--text", "hi.", "-o", tmp_path / "x.wav"]
        given += ["--voice", voice] if what == "a.voice" else []
        done = subprocess.run(
            [sys.executable, "-c", _WITHOUT_RIGHTS, *map(str, given)],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "VOXCPM_COREML_CACHE": str(tmp_path / "cache")},
        )
    finally:
        path.chmod(0o755)

    assert done.returncode == 2, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if not line.startswith("warning: ")]
    assert line.startswith("error: ")
    assert "ermission denied" in line
