import re
import time

import numpy as np
import pytest

from voxcpm_runtime.text.segments import each_segment


def segments(text, count, target):
    return list(each_segment(text, count, target))


def words(text):
    return len(text.split())


def spoken(text, target, count=words):
    return [segment.text for segment in segments(text, count, target)]


ONE = "One two three four."
TWO, THREE = f"{ONE} {ONE}", f"{ONE} {ONE} {ONE}"
LONG, MORE = (
    "one two three four five six seven eight nine ten,",
    "one two three four five six seven eight nine.",
)


@pytest.mark.parametrize(
    ("text", "target", "expected"),
    [
        # Sentences stay whole, and parts are balanced: a greedy split would divide the second text into 12 and 4.
        ("One two three four. " * 6, 12, f"{THREE}|{THREE}"),
        ("One two three four. " * 4, 12, f"{TWO}|{TWO}"),
        (f"{ONE} Six seven. Eight nine ten eleven.", 5, f"{ONE}|Six seven.|Eight nine ten eleven."),
        # Long ones are split at pauses; in the last one, the comma is too near the beginning.
        ("One two three, four five six.", 4, "One two three,|four five six."),
        ("One two three (four), five six.", 5, "One two three (four),|five six."),
        ("It costs 3,000 or 4:30 you know.", 4, "It costs 3,000|or 4:30 you know."),
        ("“One, two. Three, four.”", 3, "“One, two.|Three, four.”"),
        ("One two three four five six.", 3, "One two three|four five six."),
        ("So, two three four five six seven eight.", 4, "So, two three four|five six seven eight."),
        # A short rest is not left alone. Without a clause's end, the whole sentence is better than half of it.
        (f"{LONG} {MORE} So be it.", 20, f"{LONG}|{MORE} So be it."),
        (f"So be it. {LONG} {MORE}", 20, f"So be it. {LONG}|{MORE}"),
        (f"{LONG[:-1]} {MORE} Yes.", 19, f"{LONG[:-1]} {MORE}|Yes."),
        # Punctuation stays with its neighbours.
        ("Wait. ... What? !", 2, "Wait. ...|What? !"),
        ("— One two.", 2, "— One|two."),
        ("One.\n\n***\n\nTwo.", 5, "One.|Two."),
        ("— …\n\n* * *", 10, ""),
        # What the voice cannot say is left out.
        ("Hello there.\n\nъъъ ъъ.\n\nBye now.", 2, "Hello there.|Bye now."),
    ],
)
def test_text_of_words_in_segments(text, target, expected):
    found = spoken(text, target, lambda part: 0 if "ъ" in part else words(part))
    assert found == [one for one in expected.split("|") if one]


@pytest.mark.parametrize(
    ("text", "target", "expected"),
    [
        ("我们明天去公园，然后回家吃饭。", 8, ["我们明天去公园，", "然后回家吃饭。"]),
        ("我们明天去公园然后回家", 4, ["我们明天", "去公园", "然后回家"]),
        ("用Python写代码", 6, ["用", "Python", "写代码"]),
        ("abcdefgh", 4, ["abcd", "efgh"]),
        ("e\u0301" * 4, 3, ["e\u0301"] * 4),
        ("우리는 어제 저녁에 시장에서 음식을", 11, ["우리는 어제 저녁에", "시장에서 음식을"]),
        ("", 10, []),
        ("。", 10, []),
    ],
)
def test_chinese_is_split_after_clauses_then_between_characters_and_korean_between_words(
    text, target, expected
):
    assert spoken(text, target, len) == expected


def test_segments_are_bounded_and_preserve_the_text():
    rng = np.random.default_rng(0)
    parts = [*"，“”", "one ", "Two. ", "three, ", "我们", "你好。", "...", "\n\n", " — ", "x" * 9, "3.5 "]
    for _ in range(500):
        text = "".join(rng.choice(parts, size=rng.integers(0, 40)))
        target = int(rng.integers(1, 30))
        found = segments(text, len, target)
        assert all(0 < len(s.text) <= target and s.text == s.text.strip() for s in found)
        assert re.sub(r"\W", "", "".join(s.text for s in found)) == re.sub(r"\W", "", text)


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
