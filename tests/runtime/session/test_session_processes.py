"""Sessions that a program leaves open when it ends, and that a process has when it is forked."""

from __future__ import annotations

import subprocess
import sys

WAITS = """
import threading
from voxcpm_runtime.session import threaded_speech
from voxcpm_runtime.session.session import Session
threaded_speech.ENDING_SECONDS = 0.2
entered = threading.Event()
class Never:
    def __enter__(self):
        entered.set()
        threading.Event().wait()
    def __exit__(self, *_):
        pass
def narrate(segments, *, cancel):
    for _ in segments:
        yield from ()
session = Session(narrate, 16_000, turn=Never)
session.push_text("Hello there. And so on. ")
assert entered.wait(10)
"""


def test_a_program_ends_though_a_session_waits_for_a_turn_that_never_comes() -> None:
    ended = subprocess.run([sys.executable, "-c", WAITS], capture_output=True, timeout=30, check=False)

    assert (ended.returncode, ended.stderr) == (0, b"")


FORKS = """
import os, sys, threading
from voxcpm_runtime.session.session import Session
def narrate(segments, *, cancel):
    for _ in segments:
        yield from ()
session = Session(narrate, 16_000)
session.push_text("Hello there. And so on. ")
held, free = threading.Event(), threading.Event()
def hold():
    # As the session's own thread does, for a moment.
    with session._speech._changed:
        held.set()
        free.wait()
threading.Thread(target=hold).start()
held.wait()
child = os.fork()
if not child:
    sys.exit(3)
free.set()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_process_ends_whatever_the_threads_did_when_it_was_forked() -> None:
    ended = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, timeout=30, check=False)

    assert ended.stdout == b"3\n"
