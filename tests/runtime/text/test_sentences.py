"""Sentence ends: where they are, that fragments make no difference, and how early a sentence is returned."""

from __future__ import annotations

import time

import numpy as np
import pytest

from voxcpm_runtime.text.sentences import Sentence, SentenceCutter, each_sentence


def sentences(text: str) -> list[Sentence]:
    return list(each_sentence(text))


# A | marks where one sentence ends and the next begins.
CUT = [
    "Mr. Smith met Mrs. Jones.| They talked.",
    "Dr. Who is here.| He waits.",
    "The U.S. Army is large.| It grows.",
    "Take fruit, e.g. apples.| Then eat.",
    "The best one, i.e. Tom, won.| Good.",
    "Apples, pears, etc. are fruit.| They grow.",
    "He took bus No. 5 to town.| It was late.",
    "Fig. 3 shows this.| See also Fig. 4.",
    "No.| I will not.",
    "J.R.R. Tolkien wrote it.| We read it.",
    "Pi is about 3.14.| Really.",
    "Use version 2.0.1 now.| It works.",
    "I thought… well, never mind.| Fine.",
    "I thought…| Well, never mind.",
    '"He said no."| Then he left.',
    "“Stop!” he cried.| They stopped.",
    "He said, “Come in. Sit down.”| She sat.",
    "He left.| (She stayed.)| They met.",
    "It works (try it. You will see) well.| Yes.",
    "He (Mr. Smith) left.| Good.",
    "今天天气很好。|我们去公园吧！|你来吗？|好。",
    "他说：“我不去。”|然后他走了。",
    "「你好。」|他笑了。",
    "真的吗？！|太好了！！！|走吧。",
    "他说OK。|Then we left.|然后呢？",
    "Mail me at a.b@example.com or see www.example.com/a.html?x=1 now.| Thanks.",
    "It starts at 5 p.m. on Monday.| Be there.",
    "It starts at 5 p.m.| Be there.",
    "Chapter One\n\n|It was a dark night.| It rained.",
    "It was a dark\nand stormy night.| It rained.",
    "He came 3rd.| She won.",
    "1. Wash the rice.| 2. Boil it.",
    "What?!| No way!!| Yes.",
    "I use it daily.| iPhones are good.",
    "Apple Inc. makes phones.| They sell.",
    "On Jan. 5 he left.| It snowed.",
    "It was Smith vs. Jones.| Jones won.",
    "This is plan B.| We need it.",
    "It was late.| 20 people came.",
    "He nodded.| “Let us go.”",
    "“He said ‘no.’”| Then he left.",
    # Without capitals, as in a chat.
    "hello there.| how are you?| i am fine!| good",
    "he left at 5 p.m.| we stayed.| it was dr. who.",
    # An unknown abbreviation.
    "It weighs xyz. five pounds.| Good.",
    "She drove to Washington, D.C. yesterday.| It was far.",
    "“I went to Paris,” he said.| “It was dark.”| She smiled.",
    "‘I don’t know. Maybe,’ he said.| She nodded.",
    "I'm sad :( We lost.| You won.",
    'It is 5" wide.| It is 7" long.| Good.',
    "**Note.**| Read this.| *Really?*| Yes.",
    "Wait . . . what?| Yes.",
    "He paid... 5 dollars.| Fine.",
    "Take plan B...| Tom will.",
    "Buy this:\n|- milk\n|- eggs\nand go.",
    "Do this:\n|1. Wash it\n|2. Dry it\n",
    "I was born in\n1984.| It was cold.",
    "¿Qué hora es?| ¡Es tarde!| Vamos.",
    "これは本です。|「そうですか。」と彼は言った。|はい。",
    "यह एक किताब है।| वह घर गया।",
    '他说："好。"|她走了。|"再见。"',
    "他走了。|“你好。”|她笑了。",
    "一、买米。|1.煮饭。|2.吃饭。",
    "Great! 😀 👍🏽| Next one.😀| Good.| № 5.",
    "太好了！😀|走吧。👩‍👩‍👧\n\n|好。",
    "Tom: hi.| 王先生：你好。|再见",
]
ENGLISH = """Chapter One

Mr. Smith came to the U.S. in 1984. He lived at 5 St. James St., No. 12, near Washington, D.C., and worked for Acme Inc.
until Dec. 31. “I don’t know why,” he used to say. “It was warm. It was cheap!” Nobody asked...

1. Wash the rice.
2. Boil it for 3.5 min. in 1.2 l of water (see p. 14).

Was that all? At 6 p.m. he went home. She said, "Come in. Sit down." And he did… for a while. See https://example.com/a.b?c=d.
"""
CHINESE = """第一章

今天天气很好。我们去公园吧！他问：“你来吗？我等你。”然后他走了……我用Python 3.12写代码，版本是v2.0.1；很好。
It works. 真的吗？！

「你好。」他笑了。价格是3.5元。明天见
"""


@pytest.mark.parametrize("marked", CUT)
def test_sentences_end_where_a_reader_would_say(marked: str) -> None:
    assert [s.text.strip() for s in sentences(marked.replace("|", ""))] == [
        part.strip() for part in marked.split("|")
    ]


@pytest.mark.parametrize("text", [ENGLISH, CHINESE, ENGLISH.replace("\n", "\r\n")])
def test_fragments_make_no_difference_and_nothing_is_lost(text: str) -> None:
    whole = sentences(text)
    assert "".join(s.text for s in whole) == text
    rng = np.random.default_rng(len(text))
    for longest in (1, 2, 3, 5, 8, 40):
        cutter, cut, at = SentenceCutter(), [], 0
        while at < len(text):
            length = int(rng.integers(1, longest + 1))
            cut += cutter.push(text[at : at + length])
            at += length
        assert [*cut, *cutter.flush()] == whole


def test_any_mixture_of_marks_is_cut_the_same_in_fragments() -> None:
    rng = np.random.default_rng(0)
    parts = [*"aB我 。.\n\"“”（）'’-1*…?!", ". ", "U.S", "I ", "the ", "The ", "\n\n", "\n- ", "1. ", "e.g."]
    for _ in range(3000):
        text = "".join(rng.choice(parts, size=rng.integers(0, 25)))
        whole = sentences(text)
        assert "".join(s.text for s in whole) == text
        assert all(s.text.strip() for s in whole[:-1])
        cutter = SentenceCutter()
        assert [s for char in text for s in cutter.push(char)] + cutter.flush() == whole


def _known_after(text: str) -> list[str]:
    """The text that has been read when each sentence is returned."""
    cutter = SentenceCutter()
    return [text[: at + 1] for at, char in enumerate(text) for _ in cutter.push(char)]


def test_a_sentence_comes_out_with_the_first_letter_of_the_next() -> None:
    assert _known_after("It rained. He left. “Why?” She") == [
        "It rained. H",
        "It rained. He left. “W",
        "It rained. He left. “Why?” S",
    ]
    assert _known_after("下雨了。他走了！再") == ["下雨了。他", "下雨了。他走了！再"]
    assert _known_after("A title\n\nText") == ["A title\n\nT"]
    # In doubt after its first word.
    assert _known_after("I like the U.S. She does") == ["I like the U.S. She "]


def test_a_quotation_is_not_waited_for_without_end() -> None:
    text = "“" + "It rained all day. " * 40
    first = sentences(text)[0].text
    assert 200 <= len(first) < 240
    assert len(sentences(text)) > 25


def test_a_blank_line_ends_a_paragraph_and_the_end_of_the_text_does_not() -> None:
    text = "Title\n\nOne. Two.\n \t\r\nThree\nfour. Five."
    assert [(s.text, s.ends_paragraph) for s in sentences(text)] == [
        ("Title\n\n", True),
        ("One. ", False),
        ("Two.\n \t\r\n", True),
        ("Three\nfour. ", False),
        ("Five.", False),
    ]
    assert sentences("One.\n\n")[0].ends_paragraph
    assert [s.text for s in sentences("\n\n One. Two.")] == ["\n\n One. ", "Two."]
    assert sentences("") == []


def test_after_a_flush_a_new_sentence_begins() -> None:
    cutter = SentenceCutter()
    assert cutter.push("“It was the U.") == []
    assert [s.text for s in cutter.flush()] == ["“It was the U."]
    assert cutter.flush() == []
    assert [s.text for s in cutter.push("S. army. “Good")] == ["S. army. "]
    assert [s.text for s in cutter.flush()] == ["“Good"]


@pytest.mark.parametrize("text", [ENGLISH, CHINESE, "e.g. ", "…"])
def test_time_grows_with_the_length_of_the_text(text: str) -> None:
    """In quadratic time this would take minutes."""
    text = (text * (500_000 // len(text) + 1))[:500_000]
    cutter, length, started = SentenceCutter(), 0, time.perf_counter()
    for at in range(0, len(text), 5):
        length += sum(len(s.text) for s in cutter.push(text[at : at + 5]))
    length += sum(len(s.text) for s in cutter.flush())
    assert length == len(text)
    assert time.perf_counter() - started < 20


@pytest.mark.parametrize("word", ["a" * 30_000, "a " * 15_000, "(" * 30_000])
def test_a_sentence_without_an_end_is_cut_wherever_the_fragments_end(word):
    whole = sentences(word + ". Yes.")

    assert "".join(sentence.text for sentence in whole) == word + ". Yes."
    assert max(len(sentence.text) for sentence in whole) <= 8000
    if " " in word:
        assert max(len(sentence.text) for sentence in whole) <= 4010
        assert all(sentence.text.endswith(" ") for sentence in whole[:-1])
    cutter, pushed = SentenceCutter(), []
    for char in word + ". Yes.":
        pushed += cutter.push(char)
    assert [*pushed, *cutter.flush()] == whole
