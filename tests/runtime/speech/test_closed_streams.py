"""Standard streams that the caller has closed: no error, and no file in their place."""

import os
import subprocess
import sys

import pytest

from voxcpm_runtime.commands import cli


def test_a_closed_standard_error_is_no_error(speaking, tmp_path, monkeypatch):
    """`2>&-`, as from a job that wants no messages: Python has no stream there at all."""
    monkeypatch.setattr(sys, "stderr", None)

    assert cli.main(["generate", speaking, "--text", "hi.", "-o", str(tmp_path / "a.wav")]) == 0
    assert (tmp_path / "a.wav").is_file()
    assert cli.main(["generate", speaking, "--text", " ", "-o", str(tmp_path / "b.wav")]) == 2


@pytest.mark.parametrize("closed", ["2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_no_file_gets_the_number_of_a_stream_that_was_closed(tmp_path, closed):
    """What a library prints to standard error would be written into it."""
    program = (
        "from voxcpm_runtime.commands import cli; cli.main(['voices', 'list']); "
        "number = open('some', 'w').fileno(); open('number', 'w').write(str(number))"
    )
    environment = {**os.environ, "VOXCPM_COREML_VOICES": str(tmp_path)}
    command = f"exec '{sys.executable}' -c \"{program}\" {closed}"
    ended = subprocess.run(["sh", "-c", command], cwd=tmp_path, env=environment, check=False, timeout=120)  # noqa: S607

    assert ended.returncode == 0
    assert int((tmp_path / "number").read_text()) > 2
