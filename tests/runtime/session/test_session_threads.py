"""Threads of sessions: one thread and one turn while there is text, and cancellation from any thread."""

import contextlib
import gc
import random
import subprocess
import sys
import threading
import time
import weakref

import pytest

from encoding_speaker import RATE, Speaker, as_tuple, heard
from voxcpm_constants.errors import InputError
from voxcpm_runtime.session import session as session_module
from voxcpm_runtime.session.session import Session
from waiting import until


@pytest.fixture(autouse=True)
def no_thread_is_left():
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("pushed", ["Hello. ", "A very long sentence, " * 50 + "."])
@pytest.mark.parametrize("end", ["cancel", "close"])
def test_cancelling_from_another_thread_wakes_the_reader_and_ends_the_speaker(pushed, end):
    speaker = Speaker(pause=lambda: 0.005)
    session = Session(speaker, RATE, buffer_seconds=100)
    session.push_text(pushed)
    read = []
    reader = threading.Thread(target=lambda: read.extend(session))
    reader.start()
    time.sleep(0.05)
    assert reader.is_alive()
    getattr(session, end)()
    reader.join(timeout=30)
    assert not reader.is_alive()
    session.close()
    assert session.finished
    assert session.buffered_seconds == 0
    assert session.next_audio_chunk() is None


def test_a_turn_is_held_only_while_there_is_something_to_speak():
    entered = []
    free = threading.Event()

    @contextlib.contextmanager
    def turn():
        entered.append("waits")
        assert free.wait(10)
        entered.append("speaks")
        yield
        entered.append("left")

    with Session(Speaker(), RATE, turn=turn) as session:
        session.push_text("One")
        assert session.next_audio_chunk(0.1) is None
        assert entered == []
        session.push_text(" and two. Three and four. Fi")
        until(lambda: entered == ["waits"])
        assert session.next_audio_chunk(0.1) is None
        free.set()
        # Both sentences in one turn, and none while the third one is incomplete.
        until(lambda: entered == ["waits", "speaks", "left"])
        session.push_text("ve. ... ")
        session.flush()
        chunks = list(session)
    assert entered == ["waits", "speaks", "left"] * 2
    assert list(dict.fromkeys((c.sentence, c.text) for c in chunks)) == [
        (0, "One and two. "),
        (1, "Three and four. "),
        (2, "Five. ... "),
    ]


def test_turn_is_released_after_an_error_or_cancellation():
    held = []

    @contextlib.contextmanager
    def turn():
        held.append(True)
        try:
            yield
        finally:
            held.pop()

    speaker = Speaker()
    with Session(speaker, RATE, turn=turn) as session:
        session.push_text("This is unspeakable. ")
        session.flush()
        with pytest.raises(InputError) as kept:
            list(session)
        # The error's traceback references its frames.
        assert held == []
        assert kept.tb is not None

    with Session(speaker, RATE, turn=turn, buffer_seconds=0.05) as session:
        session.push_text("This one has far more to say than fits into the buffer. ")
        session.flush()
        until(lambda: session.buffered_seconds > 0)
        assert held == [True]
    assert held == []


def speaking_threads():
    return sum(thread.name == "voxcpm-session" for thread in threading.enumerate())


def test_unread_sessions_hold_no_thread_and_resume():
    text = "This one has far more to say than fits into the buffer. And here it goes on."
    expected = heard(text)
    opened = [Session(Speaker(), RATE, buffer_seconds=0.05) for _ in range(40)]
    for session in opened:
        session.push_text(text)
        session.flush()
    until(lambda: all(session.buffered_seconds > 0.02 for session in opened))
    until(lambda: speaking_threads() == 0)
    assert not any(session.finished for session in opened)

    for session in opened[::2]:
        assert [as_tuple(chunk) for chunk in session] == expected
        session.close()
    for session in opened[1::2]:
        session.cancel()
        assert session.finished
        assert session.next_audio_chunk(0) is None
    until(lambda: speaking_threads() == 0)


def test_pending_text_is_limited(monkeypatch):
    monkeypatch.setattr(session_module, "MAX_CHARACTERS", 100)
    with Session(Speaker(), RATE) as session:
        session.push_text("x" * 60)
        with pytest.raises(InputError, match="60 characters wait to be spoken, and 41 more were pushed"):
            session.push_text("x" * 41)
        session.push_text("y" * 40)
        session.flush()
        assert len(list(session)) == 50
        session.push_text("z" * 100)


def test_closing_an_idle_session_frees_its_resources():
    for ending in (Session.close, Session.cancel):
        speaker = Speaker()
        kept = weakref.ref(speaker)
        session = Session(speaker, RATE)
        session.push_text("Hello. And")
        until(lambda: speaking_threads() == 0)
        ending(session)
        gc.disable()
        del session, speaker
        assert kept() is None
        gc.enable()


@pytest.fixture
def _switching():
    """Switch threads as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("_switching")
def test_text_pushed_while_the_thread_exits_is_spoken():
    """Whoever pushes just then either finds the thread, or begins the next one: nothing is lost and none is doubled."""
    entered = []

    @contextlib.contextmanager
    def turn():
        entered.append(1)
        assert len(entered) == 1
        yield
        entered.pop()

    def in_turn():
        assert entered == [1]
        return 0.0

    rng = random.Random(0)
    with Session(Speaker(in_turn, patch=1), RATE, turn=turn, buffer_seconds=100) as session:
        for _ in range(400):
            session.push_text("Hi you. ")
            time.sleep(rng.uniform(0, 2e-3))
        session.flush()
        chunks = list(session)

    assert [chunk.sentence for chunk in chunks] == [number for number in range(400) for _ in range(3)]
    assert entered == []


def test_text_pushed_while_the_turn_is_released_is_spoken():
    pushed = []

    @contextlib.contextmanager
    def turn():
        yield
        if not pushed:
            until(lambda: session.buffered_seconds == 0)
            session.push_text("o more. T")
            pushed.append(1)

    with Session(Speaker(), RATE, turn=turn) as session:
        session.push_text("Hi you. N")
        assert [session.next_audio_chunk(10).sentence for _ in range(7)] == [0] * 3 + [1] * 4


WAITS = """
import threading
from voxcpm_runtime.session import session as session_module
from voxcpm_runtime.session.session import Session
session_module.EXIT_TIMEOUT_SECONDS = 0.2
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


def test_session_waiting_for_a_turn_does_not_block_exit():
    ended = subprocess.run([sys.executable, "-c", WAITS], capture_output=True, timeout=120, check=False)
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
    with session._changed:
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


def test_forked_process_exits_regardless_of_the_threads_state():
    ended = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, timeout=120, check=False)
    assert ended.stdout == b"3\n"
