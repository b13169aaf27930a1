"""`serve --wyoming` as a process."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROGRAM = "import sys; from voxcpm_runtime.commands.cli import main; sys.exit(main())"


def test_a_taken_port_names_the_option_that_chose_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        given = ["serve", "--port", "0", "--max-jobs", "0", "--wyoming", str(taken.getsockname()[1])]
        second = subprocess.run(
            [sys.executable, "-c", PROGRAM, *given, "--voices-folder", str(tmp_path)],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert second.stderr.endswith("; choose another --wyoming\n"), second.stderr


def test_only_the_option_needs_the_package() -> None:
    def served(*options: str) -> str:
        arguments = ["voxcpm-coreml", "serve", "absent-bundle", "--port", "0", *options]
        absent = f"import sys; sys.modules['wyoming'] = None; sys.argv = {arguments}; "
        return subprocess.run(
            [sys.executable, "-c", absent + PROGRAM], capture_output=True, text=True, check=False
        ).stderr

    assert re.fullmatch(
        r"error: serve needs wyoming.* pip install \"voxcpm-coreml\[serve\]\"\n", served("--wyoming", "0")
    )
    assert served().splitlines()[-1].startswith("error: absent-bundle")


def test_sigterm_ends_a_connection_with_an_error_event(started: Callable[..., Any]) -> None:
    process, _ = started("--wyoming", "0")
    line = process.stderr.readline()
    assert re.fullmatch(r"listening on tcp://127\.0\.0\.1:\d+ \(Wyoming\)\n", line), line
    with socket.create_connection(("127.0.0.1", int(re.findall(r"\d+", line)[-1]))) as connection:
        connection.sendall(b'{"type": "ping"}\n')
        assert b"pong" in connection.recv(1000)
        process.send_signal(signal.SIGTERM)
        assert connection.makefile("rb").read().count(b"the server ends") == 1
        rest = process.communicate(timeout=30)[1]
    assert (process.returncode, rest) == (0, "")
