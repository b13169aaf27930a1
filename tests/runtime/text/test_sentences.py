import numpy as np
import pytest

from voxcpm_runtime.text.sentences import SentenceCutter, each_sentence


def sentences(text):
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


@pytest.mark.parametrize("marked", CUT)
def test_sentence_boundaries(marked):
    assert [s.text.strip() for s in sentences(marked.replace("|", ""))] == [
        part.strip() for part in marked.split("|")
    ]


def test_fragmentation_does_not_change_sentences():
    rng = np.random.default_rng(0)
    parts = [*"aB我 。.\n\"“”（）'’-1*…?!", ". ", "U.S", "I ", "the ", "The ", "\n\n", "\n- ", "1. ", "e.g."]
    for _ in range(3000):
        text = "".join(rng.choice(parts, size=rng.integers(0, 25)))
        whole = sentences(text)
        assert "".join(s.text for s in whole) == text
        assert all(s.text.strip() for s in whole[:-1])
        cutter = SentenceCutter()
        assert [s for char in text for s in cutter.push(char)] + cutter.flush() == whole


def _known_after(text):
    """The text read by the time each sentence is returned."""
    cutter = SentenceCutter()
    return [text[: at + 1] for at, char in enumerate(text) for _ in cutter.push(char)]


def test_sentence_is_emitted_at_the_next_ones_first_letter():
    assert _known_after("It rained. He left. “Why?” She") == [
        "It rained. H",
        "It rained. He left. “W",
        "It rained. He left. “Why?” S",
    ]
    assert _known_after("下雨了。他走了！再") == ["下雨了。他", "下雨了。他走了！再"]
    assert _known_after("A title\n\nText") == ["A title\n\nT"]
    # Ambiguous after its first word.
    assert _known_after("I like the U.S. She does") == ["I like the U.S. She "]


def test_unclosed_quotation_does_not_block_and_flush_starts_a_new_sentence():
    text = "“" + "It rained all day. " * 40
    assert 200 <= len(sentences(text)[0].text) < 240
    assert len(sentences(text)) > 25
    cutter = SentenceCutter()
    assert cutter.push("“It was the U.") == []
    assert [s.text for s in cutter.flush()] == ["“It was the U."]
    assert cutter.flush() == []
    assert [s.text for s in cutter.push("S. army. “Good")] == ["S. army. "]
    assert [s.text for s in cutter.flush()] == ["“Good"]


def test_blank_line_ends_a_paragraph_and_end_of_text_does_not():
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


@pytest.mark.parametrize("word", ["a" * 30_000, "a " * 15_000, "(" * 30_000])
def test_unterminated_sentence_is_split_independently_of_fragments(word):
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
