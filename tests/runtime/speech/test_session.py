"""Sessions with a fake speaker, whose audio depends only on the text: order, buffers, threads, turns, cancellation."""

import contextlib
import gc
import random
import subprocess
import sys
import threading
import time
import weakref

import pytest

from encoding_speaker import RATE, SPOKEN, TEXT, Speaker, as_tuple, heard, spoken
from voxcpm_constants.errors import InputError
from voxcpm_runtime.speech import session as session_module
from voxcpm_runtime.speech.session import Session
from waiting import until


@pytest.fixture(autouse=True)
def no_thread_is_left():
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


def test_text_without_words_is_refused_as_by_speak_and_words_may_follow():
    with Session(Speaker(), RATE) as session:
        assert spoken(session, "") == spoken(session, " ") == []
        with pytest.raises(InputError, match="no letter or digit in ' 🎉 …'; expected text to speak"):
            spoken(session, "🎉 …")
        chunks = spoken(session, " Hello.")
        assert "".join({chunk.sentence: chunk.text for chunk in chunks}.values()) == " 🎉 … Hello."
        assert not spoken(session, "👍")


def test_sentences_are_in_order_and_offsets_contiguous():
    speaker = Speaker()
    with Session(speaker, RATE) as session:
        chunks = spoken(session, TEXT)
        assert session.finished
    assert [segment.text for segment in speaker.segments] == SPOKEN
    assert [segment.ends_paragraph for segment in speaker.segments] == [False] * 3 + [True, False, False]
    lengths = [len(chunk.pcm) for chunk in chunks]
    assert [chunk.offset for chunk in chunks] == [sum(lengths[:at]) for at in range(len(lengths))]
    # A pause of 7 samples comes before the first sentence of the second paragraph.
    expected = [n for n, text in enumerate(SPOKEN) for _ in range(len(text) // 2 + (n == 4))]
    assert [chunk.sentence for chunk in chunks] == expected
    assert lengths.count(7) == 1
    assert lengths[expected.index(4)] == 7


@pytest.mark.parametrize("seed", range(3))
def test_output_is_independent_of_timing_and_fragments(seed):
    expected = heard()
    rng = random.Random(seed)
    got = []
    speaker = Speaker(pause=lambda: rng.choice([0, 0, 0.002]))
    with Session(speaker, RATE, buffer_seconds=rng.choice([0.021, 0.05, 5])) as session:

        def write():
            at = 0
            while at < len(TEXT):
                length = rng.randint(1, 9)
                session.push_text(TEXT[at : at + length])
                at += length
                time.sleep(rng.choice([0, 0, 0.003]))
            session.flush()

        writer = threading.Thread(target=write)
        writer.start()
        for chunk in session:
            got.append(as_tuple(chunk))
            time.sleep(rng.choice([0, 0, 0.002]))
        writer.join()
    assert got == expected


def test_surrogate_pair_may_be_split_between_fragments():
    with Session(Speaker(), RATE) as session:
        chunks = spoken(session, "One \ud83d", "", "\ude00 two\ud83d", "\ude00\ud83d\ude00.")
    assert {chunk.text for chunk in chunks} == {"One 😀 two😀😀."}


@pytest.mark.parametrize("fragments", [("a\ud83d", "b"), ("\ude00",)])
def test_lone_surrogate_is_rejected_and_the_text_around_it_spoken(fragments):
    with Session(Speaker(), RATE) as session:

        def write():
            for fragment in fragments:
                session.push_text(fragment)
            session.flush()

        session.push_text("Hello ")
        with pytest.raises(InputError, match="the text is not valid Unicode"):
            write()
        session.push_text("there.")
        session.flush()
        said = "Hello athere." if fragments[0][0] == "a" else "Hello there."
        assert {chunk.text for chunk in session} == {said}


def test_a_full_buffer_blocks_until_a_chunk_is_read_and_a_larger_piece_until_it_is_empty():
    speaker = Speaker()
    with Session(speaker, RATE, buffer_seconds=0.1) as session:  # 5 patches
        session.push_text("A sentence of many patches, which do not fit the buffer at all.")
        session.flush()
        until(lambda: session.buffered_seconds == 0.1)
        time.sleep(0.05)
        assert speaker.pieces == 6  # the sixth is made, and waits
        assert session.next_audio_chunk(timeout=1).offset == 0
        until(lambda: speaker.pieces == 7)
        time.sleep(0.05)
        assert speaker.pieces == 7
        assert session.buffered_seconds == 0.1
        assert [chunk.offset for chunk in session] == list(range(20, 63 // 2 * 20, 20))
        assert session.buffered_seconds == 0
    with Session(Speaker(patch=250), RATE, buffer_seconds=0.1) as session:
        session.push_text("Hi!!")
        session.flush()
        until(lambda: session.buffered_seconds == 0.25)
        assert [(chunk.offset, len(chunk.pcm)) for chunk in session] == [(0, 250), (250, 250)]


def test_flush_speaks_an_incomplete_sentence_and_skips_what_cannot_be_said():
    speaker = Speaker()
    with Session(speaker, RATE) as session:
        for text in ("Hello", " there", "Bye."):
            session.push_text(text)
            assert not session.finished
            assert len(spoken(session)) == len(text.strip()) // 2
            assert session.finished
            assert session.next_audio_chunk() is None
        chunks = spoken(session, "Hello. ***\n\nBye.")
    assert list(dict.fromkeys(c.text for c in chunks)) == ["Hello. ", "***\n\nBye."]
    assert [segment.text for segment in speaker.segments] == ["Hello", "there", "Bye.", "Hello.", "Bye."]


def test_state_id_identifies_the_preceding_state():
    def ids(text, seed=b"voice", **options):
        return [chunk[3] for chunk in heard(text, seed=seed, **options)]

    plain = ids("One. Two. Three.")
    assert len(set(plain)) == len(plain)
    assert all(len(i) == 16 and int(i, 16) >= 0 for i in plain)
    assert ids("One. Two. Three.", buffer_seconds=0.02) == plain
    assert ids("One. Two.  Other.")[:4] == plain[:4]
    assert not set(plain[4:]) & set(ids("One. Two. Other."))
    assert not set(plain) & {*ids("Ono. Two. Three."), *ids("One. Two. Three.", b"other")}


def test_error_follows_earlier_audio_and_persists():
    with Session(Speaker(), RATE) as session:
        session.push_text("Hello. This is unspeakable. Never said.")
        session.flush()
        until(lambda: session.buffered_seconds == 0.06)
        assert [session.next_audio_chunk().sentence for _ in range(3)] == [0, 0, 0]
        for _ in range(2):
            with pytest.raises(InputError, match="cannot say 'unspeakable'"):
                session.next_audio_chunk(timeout=10)
        session.push_text("More.")
        with pytest.raises(InputError, match="cannot say"):
            list(session)


def test_text_is_rejected_when_too_much_waits_and_after_the_end(monkeypatch):
    monkeypatch.setattr(session_module, "MAX_CHARACTERS", 100)
    with Session(Speaker(), RATE) as session:
        session.push_text("x" * 60)
        with pytest.raises(InputError, match="60 characters wait to be spoken, and 41 more were pushed"):
            session.push_text("x" * 41)
        assert len(spoken(session, "y" * 40)) == 50
        session.push_text("z" * 100)
    session = Session(Speaker(), RATE)
    for end in (session.cancel, session.cancel, session.close):
        end()
    for call in (lambda: session.push_text("Hello."), session.flush):
        with pytest.raises(InputError, match="the session is closed"):
            call()


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

    with Session(Speaker(), RATE, turn=turn) as session:
        with pytest.raises(InputError) as kept:
            spoken(session, "This is unspeakable. ")
        # The error's traceback references its frames.
        assert held == []
        assert kept.tb is not None
    with Session(Speaker(), RATE, turn=turn, buffer_seconds=0.05) as session:
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


NARRATE = """
import threading
from voxcpm_runtime.speech import session as session_module
from voxcpm_runtime.speech.session import Session
def narrate(segments, *, cancel):
    for _ in segments:
        yield from ()
"""
WAITS = """
session_module.EXIT_TIMEOUT_SECONDS = 0.2
entered = threading.Event()
class Never:
    def __enter__(self):
        entered.set()
        threading.Event().wait()
    def __exit__(self, *_):
        pass
session = Session(narrate, 16_000, turn=Never)
session.push_text("Hello there. And so on. ")
assert entered.wait(10)
"""


FORKS = """
import os, sys
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


@pytest.mark.parametrize(("program", "printed"), [(WAITS, b""), (FORKS, b"3\n")], ids=["waits", "forks"])
def test_a_process_exits_while_a_session_waits_for_its_turn_or_after_a_fork(program, printed):
    command = [sys.executable, "-c", NARRATE + program]
    ended = subprocess.run(command, capture_output=True, timeout=120, check=True)
    assert ended.stdout == printed
    assert ended.stderr == b"" or program == FORKS
