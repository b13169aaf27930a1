"""Sessions with a fake speaker, whose audio depends only on the text."""

import random
import threading
import time

import pytest

from encoding_speaker import RATE, SPOKEN, TEXT, Speaker, as_tuple, heard
from voxcpm_constants.errors import InputError
from voxcpm_runtime.session.session import Session
from waiting import until


@pytest.fixture(autouse=True)
def no_thread_is_left():
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


def test_text_without_words_is_refused_as_by_speak_and_words_may_follow():
    with Session(Speaker(), RATE) as session:
        session.flush()
        session.push_text(" ")
        session.flush()
        session.push_text("🎉 …")
        with pytest.raises(InputError, match="no letter or digit in ' 🎉 …'; expected text to speak"):
            session.flush()
        session.push_text(" Hello.")
        session.flush()
        assert "".join({chunk.sentence: chunk.text for chunk in session}.values()) == " 🎉 … Hello."
        session.push_text("👍")
        session.flush()
        assert not list(session)


def test_sentences_are_in_order_and_offsets_contiguous():
    speaker = Speaker()
    with Session(speaker, RATE) as session:
        session.push_text(TEXT)
        session.flush()
        chunks = list(session)
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
        for fragment in ("One \ud83d", "", "\ude00 two\ud83d", "\ude00\ud83d\ude00."):
            session.push_text(fragment)
        session.flush()
        assert {chunk.text for chunk in session} == {"One 😀 two😀😀."}


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


def test_full_buffer_blocks_until_a_chunk_is_read():
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


def test_flush_speaks_an_incomplete_sentence():
    speaker = Speaker()
    with Session(speaker, RATE) as session:
        assert not session.finished
        for text in ("Hello", " there", "Bye."):
            session.push_text(text)
            assert not session.finished
            session.flush()
            assert len(list(session)) == len(text.strip()) // 2
            assert session.finished
            assert session.next_audio_chunk() is None
    assert [segment.text for segment in speaker.segments] == ["Hello", "there", "Bye."]


def test_unspeakable_sentences_are_skipped():
    speaker = Speaker()
    with Session(speaker, RATE) as session:
        session.push_text("")
        session.flush()
        assert list(session) == []
        session.push_text("Hello. ***\n\nBye.")
        session.flush()
        spoken = list(dict.fromkeys((chunk.sentence, chunk.text) for chunk in session))
        assert spoken == [(0, "Hello. "), (1, "***\n\nBye.")]
    assert [segment.text for segment in speaker.segments] == ["Hello.", "Bye."]


def test_state_id_identifies_the_preceding_state():
    ids = [chunk[3] for chunk in heard("One. Two. Three.", seed=b"voice")]
    assert len(set(ids)) == len(ids)
    assert all(len(i) == 16 and int(i, 16) >= 0 for i in ids)
    assert [chunk[3] for chunk in heard("One. Two. Three.", seed=b"voice", buffer_seconds=0.02)] == ids
    assert [chunk[3] for chunk in heard("One. Two.  Other.", seed=b"voice")][:4] == ids[:4]
    assert not set(ids[4:]) & {chunk[3] for chunk in heard("One. Two. Other.", seed=b"voice")}
    assert not set(ids) & {chunk[3] for chunk in heard("Ono. Two. Three.", seed=b"voice")}
    assert not set(ids) & {chunk[3] for chunk in heard("One. Two. Three.", seed=b"other")}


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


def test_closed_session_rejects_text():
    session = Session(Speaker(), RATE)
    session.cancel()
    session.cancel()
    session.close()
    for call in (lambda: session.push_text("Hello."), session.flush):
        with pytest.raises(InputError, match="the session is closed"):
            call()


def test_a_piece_larger_than_the_buffer_waits_until_it_is_empty():
    with Session(Speaker(patch=250), RATE, buffer_seconds=0.1) as session:
        session.push_text("Hi!!")
        session.flush()
        until(lambda: session.buffered_seconds == 0.25)
        assert [(chunk.offset, len(chunk.pcm)) for chunk in session] == [(0, 250), (250, 250)]
