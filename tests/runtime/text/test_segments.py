"""Splitting long texts into segments: bounded, lossless, and at natural pauses."""

import re
import time

import numpy as np
import pytest

from voxcpm_runtime.text.segments import each_segment


def segments(text, count, target):
    return list(each_segment(text, count, target))


def words(text: str) -> int:
    return len(text.split())


def spoken(text: str, target: int, count=words) -> list[str]:
    return [segment.text for segment in segments(text, count, target)]


def test_a_text_within_the_target_is_one_segment_a_paragraph():
    assert [(s.text, s.ends_paragraph) for s in segments("Title\n\n One. Two.\n\nThree.\n", words, 50)] == [
        ("Title", True),
        ("One. Two.", True),
        ("Three.", False),
    ]


def test_sentences_stay_whole_and_parts_are_balanced():
    text = "One two three four. " * 6
    assert spoken(text, 12) == ["One two three four. One two three four. One two three four."] * 2
    # 16 words, which a greedy split would divide into 12 and 4.
    assert spoken("One two three four. " * 4, 12) == ["One two three four. One two three four."] * 2
    assert spoken("One two three four five. Six seven. Eight nine ten eleven twelve.", 6) == [
        "One two three four five.",
        "Six seven.",
        "Eight nine ten eleven twelve.",
    ]


@pytest.mark.parametrize(
    ("text", "target", "expected"),
    [
        ("One two three, four five six.", 4, ["One two three,", "four five six."]),
        ("One two three (four), five six.", 5, ["One two three (four),", "five six."]),
        ("It costs 3,000 or 4:30 you know.", 4, ["It costs 3,000", "or 4:30 you know."]),
        ("“One, two. Three, four.”", 3, ["“One, two.", "Three, four.”"]),
        ("One two three four five six.", 3, ["One two three", "four five six."]),
        # The comma is too near the beginning.
        ("So, two three four five six seven eight.", 4, ["So, two three four", "five six seven eight."]),
    ],
)
def test_long_sentence_is_split_at_pauses(text, target, expected):
    assert spoken(text, target) == expected


def test_short_remainder_is_not_left_alone():
    long = "one two three four five six seven eight nine ten,"
    more = "one two three four five six seven eight nine."
    assert spoken(f"{long} {more} So be it.", 20) == [long, f"{more} So be it."]
    assert spoken(f"So be it. {long} {more}", 20) == [f"So be it. {long}", more]
    # Without a clause boundary, the whole sentence is better than half of it.
    assert spoken(f"{long[:-1]} {more} Yes.", 19) == [f"{long[:-1]} {more}", "Yes."]


def test_chinese_is_split_after_clauses_then_between_characters():
    assert spoken("我们明天去公园，然后回家吃饭。", 8, len) == ["我们明天去公园，", "然后回家吃饭。"]
    assert spoken("我们明天去公园然后回家", 4, len) == ["我们明天", "去公园", "然后回家"]
    assert spoken("用Python写代码", 6, len) == ["用", "Python", "写代码"]
    assert spoken("abcdefgh", 4, len) == ["abcd", "efgh"]
    assert spoken("e\u0301" * 4, 3, len) == ["e\u0301"] * 4


def test_korean_is_split_between_words():
    sentence = "우리는 어제 저녁에 오래된 시장에서 친구들과 함께 맛있는 음식을 많이 먹었습니다."
    parts = spoken(sentence, 20, len)
    assert len(parts) > 2
    assert " ".join(parts) == sentence


def test_segments_are_bounded_and_preserve_the_text():
    rng = np.random.default_rng(0)
    parts = [*"，“”", "one ", "Two. ", "three, ", "我们", "你好。", "...", "\n\n", " — ", "x" * 9, "3.5 "]
    for _ in range(500):
        text = "".join(rng.choice(parts, size=rng.integers(0, 40)))
        target = int(rng.integers(1, 30))
        found = segments(text, len, target)
        assert all(0 < len(s.text) <= target and s.text == s.text.strip() for s in found)
        assert re.sub(r"\W", "", "".join(s.text for s in found)) == re.sub(r"\W", "", text)


@pytest.mark.parametrize("text", ["", "— …\n\n* * *", "。"])
def test_a_text_with_nothing_to_say_has_no_segments(text):
    assert segments(text, len, 10) == []


def test_punctuation_stays_with_neighbouring_words():
    assert spoken("Wait. ... What? !", 2) == ["Wait. ...", "What? !"]
    assert re.sub(r"\s", "", "".join(spoken("One two three. ... !", 3))) == "Onetwothree....!"
    assert spoken("— One two.", 2) == ["— One", "two."]
    assert spoken("One.\n\n***\n\nTwo.", 5) == ["One.", "Two."]
    assert spoken("One" + "." * 50, 10, len)[0].startswith("One")


@pytest.mark.parametrize("unit", ["a", "a. ", "a, ", '"', "\n", "好", "\u0301", "« "])
def test_splitting_takes_linear_time(unit):
    """In quadratic time, eight times the text would take 64 times as long."""

    def seconds(characters):
        text = (unit * characters)[:characters] + " end."
        began = time.process_time()
        assert "".join(part.text for part in each_segment(text, len, 16)).endswith("end.")
        return time.process_time() - began

    least = min(seconds(5000) for _ in range(3))
    assert seconds(40_000) < 8 * 4 * max(least, 0.005)


def test_paragraph_that_the_voice_cannot_say_is_left_out():
    text = "Hello there.\n\nъъъ ъъ.\n\nBye now."
    parts = each_segment(text, lambda part: 0 if "ъ" in part else len(part.split()), 2)
    assert [part.text for part in parts] == ["Hello there.", "Bye now."]
