import numpy as np
import pytest

from voxcpm_runtime.words.coverage import Follower, word_counts

TEXT = "hello there, my friend. how are you today?"


def rows(*places, text=TEXT):
    """Attention of one head to a letter at each patch (patches, 1, 5 + letters); the text is at positions 5 and up."""
    found = np.full((len(places), 1, 5 + len(text)), 0.001, np.float32)
    for row, place in zip(found, places, strict=True):
        row[0, 5 + place] = 1
    return found


def follow(*places, text=TEXT):
    follower = Follower(text, range(len(text)), slice(5, 5 + len(text)))
    assert not follower.ends(stops=False, attention=None)
    for row in rows(*places, text=text):
        assert not follower.ends(stops=False, attention=row)
    return follower


def counted(follower, text=TEXT):
    return word_counts(text, text, follower.counts())


@pytest.mark.parametrize(
    ("places", "counts", "repairs"),
    [
        (range(0, 42, 3), [1] * 8, {}),
        (range(0, 23, 3), [1] * 4 + [0] * 4, {}),
        # Words that are skipped, a beginning in the middle, and a patch or two that look elsewhere, which is no jump.
        ([0, 3, 6, 9, 12, 31, 34, 37, 40, 41], [1, 1, 0, 0, 0, 0, 1, 1], {8: 3}),
        ([24, 27, 30, 33, 36, 39, 41], [0] * 4 + [1] * 4, {3: 0}),
        ([0, 3, 30, 9, 12, 15, 40, 40, 24, 27, 30, 33, 36, 39, 41, 5], [1] * 8, {}),
    ],
)
def test_words_are_counted_and_jumps_repaired(places, counts, repairs):
    follower = follow(*places)
    assert counted(follower) == counts
    found = {patch: follower.repair_from(patch, 0, 0) for patch in range(20)}
    assert {patch: at for patch, at in found.items() if at is not None} == repairs
    assert all(follower.repair_from(patch, 0, handed_out=patch) is None for patch in repairs)


def test_speech_may_end_at_the_last_word_or_after_two_seconds_without_an_advance():
    half, whole = follow(*range(0, 23, 3)), follow(*range(0, 42, 3))
    assert not whole.ends(stops=False, attention=rows(41)[0])
    assert whole.ends(stops=True, attention=rows(41)[0])
    # A pause between sentences is shorter.
    assert [half.ends(stops=True, attention=rows(22)[0]) for _ in range(20)] == [False] * 12 + [True] * 8


def test_chinese_is_followed_by_character():
    """A character counts as three letters."""
    text = "今天下雨了。请关上窗户。"
    half = follow(0, 1, 2, 3, 4, 5, text=text)
    assert not half.ends(stops=True, attention=rows(5, text=text)[0])
    assert counted(half, text) == [1] * 5 + [0] * 5
    assert counted(follow(0, 1, 2, 3, 9, 10, 10, 11, text=text), text) == [1] * 4 + [0] * 4 + [1] * 2


@pytest.mark.parametrize("text", ["go!", "a", "...", "你好世界。"])
def test_short_and_chinese_texts_end_where_their_last_word_is(text):
    last = max((at for at, char in enumerate(text) if char.isalnum()), default=0)
    follower = follow(0, last, text=text)
    assert follower.ends(stops=True, attention=rows(last, text=text)[0])


def test_long_words_are_said_to_their_end_and_long_tokens_are_no_jump():
    text = "that is extraordinary"
    for last, ends in ((8, False), (16, False), (17, True)):
        assert (
            follow(*range(0, last, 3), last, text=text).ends(stops=True, attention=rows(last, text=text)[0])
            == ends
        )
    text = "quite extraordinarily nice"
    follower = Follower(text, [0, 6, 22], slice(5, 8))
    for row in rows(0, 1, 2, text="abc"):
        follower.ends(stops=False, attention=row)
    assert counted(follower, text) == [1, 1, 1]


def test_a_clause_that_is_said_again_is_repaired_from_before_the_jump():
    follower = follow(*range(0, 23, 3), 0, 3, 6)
    # The jump is after patch 7, and noticed two patches later.
    assert [follower.repair_from(patch, 0, 0) for patch in (10, 11, 12)] == [None, 6, None]
    assert [follower.repair_from(11, repairs, 0) for repairs in range(5)] == [6, 4, 2, 0, None]
    assert [follower.repair_from(11, 0, handed_out) for handed_out in (7, 8)] == [7, None]


def test_speech_that_goes_on_after_its_last_word_ends_there():
    follower = follow(*range(0, 42, 3), 41, 24, 27, 30)
    assert [follower.repair_from(patch, 4, 0) for patch in (16, 17, 18, 19)] == [None, None, 15, None]
    follower.rewind(15)
    assert follower.ends(stops=False, attention=rows(41)[0])
    assert counted(follower) == [1] * 8
    # A pause before the jump does not count: the next words may begin in it.
    assert follow(*range(0, 42, 3), 41, 41, 41, 41, 41, 24, 27, 30).repair_from(22, 0, 0) == 16
    # If it was handed out, or is too short for `min_len`, it is said again.
    for minimum, handed_out in ((0, 16), (16, 0)):
        follower = Follower(TEXT, range(len(TEXT)), slice(5, 5 + len(TEXT)), minimum)
        for row in rows(*range(0, 42, 3), 41, 24, 27, 30, 33, 36, 39, 41):
            assert not follower.ends(stops=False, attention=row)
        assert follower.repair_from(18, 4, handed_out) is None
        assert counted(follower) == [1, 1, 1, 1, 2, 2, 2, 2]


def test_equal_words_are_said_as_often_as_they_are_written():
    text = "no, no, no. ha ha ha ha. no, no, no."
    # At each word the head looks at all of its copies.
    attention = rows(*range(0, len(text), 2), text=text)
    for row, at in zip(attention, range(0, len(text), 2), strict=True):
        for other in range(len(text)):
            if text[other : other + 2] == text[at : at + 2] and other != at:
                row[0, 5 + other] = 0.9
    follower = Follower(text, range(len(text)), slice(5, 5 + len(text)))
    for row in attention:
        follower.ends(stops=False, attention=row)
    assert counted(follower, text) == [1] * 10


def test_after_a_rewind_the_same_patches_are_followed_again():
    once, again = follow(*range(0, 42, 3)), follow(*range(0, 42, 3), 20, 23, 26)
    again.rewind(14)
    for row in rows(39, 41):
        once.ends(stops=False, attention=row) if row[0, 46] == 1 else None
        again.ends(stops=False, attention=row)
    assert counted(again) == counted(once) == [1] * 8


def test_words_count_as_they_are_written():
    said = "it cost four dollars and twenty cents. no more."
    counts = [1] * 8 + [0] * 30 + [1] * (len(said) - 38)
    assert word_counts("It cost $4.20. No more.", said, counts) == [1, 1, 0, 1, 1]
    assert word_counts("It cost $4.20. No more.", said, []) == []
    # Most of its letters decide.
    for counts, most in (([1, 1, 2, 2, 2, 2], 2), ([1, 1, 0, 0, 0, 0], 0), ([1, 1, 1, 1, 0, 2], 1)):
        assert word_counts("window", "window", counts) == [most]
    # Tokens of several letters, and two heads.
    places = [0, 6, 11, 13, 16, 22, 24, 28, 32, 36, 41]
    follower = Follower(TEXT, places, slice(2, 2 + len(places)))
    for token in [0, 1, 1, 2, 3, 4, 4, 5, 5]:
        row = np.full((2, 20), 0.01, np.float32)
        row[:, 2 + token] = 0.8
        assert not follower.ends(stops=True, attention=row) or not follower.counts()
    assert word_counts(TEXT, TEXT, follower.counts()) == [1, 1, 1, 1, 0, 0, 0, 0]
