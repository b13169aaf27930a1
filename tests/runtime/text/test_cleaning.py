import time

import pytest

from voxcpm_constants.errors import InputError
from voxcpm_runtime.options import GenerationOptions
from voxcpm_runtime.text.cleaning import Cleaner


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ('See [the docs](https://a.b/c_(d)?e=f "T") now.', "See the docs now."),
        ("![A cat](cat.png) [![badge](a.svg)](http://x)", "A cat badge"),
        ("==key== **bold *it* x** ***both*** _em_ __str__ ~~old~~", "key bold it x both em str old"),
        ("这是**粗体**字和==高亮==。", "这是粗体字和高亮。"),
        ("Q&amp;A &#39;x&#x27; &lt;b&gt;", "Q&A 'x' <b>"),
        ('<b>Hi</b><br/><speak>you <break time="1s"/></speak><!-- x -->', "Hi\nyou "),
        ("# Title\nText\n\n---\n> quote\n* a\n+ b", "Title\n\nText\n\n\nquote\n- a\n- b"),
        ("```py\nx=1\n```\nThen `code()`[^1].", "\nThen code()."),
        ("````md\n```\nx\n```\n````\nSo.  ```a``` b", "\nSo.  a b"),
        ("| a | b |\n|:---|---|\n| 1 | **x** |\n| 2! |", "a, b.\n1, x.\n2!"),
        ("Name | Age\n--- | ---\nBob | 3\n\na | b", "Name, Age.\nBob, 3.\n\na | b"),
        ("| 姓名 | 年龄 |\n| 王 | 三 |", "姓名，年龄。\n王，三。"),
        (r"\*not\* \# x", "*not* # x"),
    ],
)
def test_marks_are_left_out(text, read):
    assert Cleaner("markdown")(text) == read
    assert Cleaner(None)(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "2*3*4, 5 * 3, 2**8 and 3**2; a*b",
        "snake_case_name, a == b and c == d, a==b==c",
        "if a<b and c>d <3 x < y; AT&T, a&b;",
        "[pause 1s][voice ada] [sic] (yes) #1 ~5 - 3",
        "    Indented\n\n- a list\n1. of two",
    ],
)
def test_other_text_is_unchanged(text):
    assert Cleaner("markdown")(text) == text


@pytest.mark.parametrize(
    "mark",
    ["*", "**a", "[a](", "<a b=c ", "<!--", "`", "```\n", "==a", "*a **b ", "(`", "|", "|a\n", "| |\n-"],
)
def test_unclosed_marks_take_linear_time(mark):
    started = time.process_time()
    Cleaner("markdown")(mark * 200_000)
    # A quadratic pattern takes minutes.
    assert time.process_time() - started < 10


def test_option_names_its_choice_and_excludes_markup():
    with pytest.raises(InputError, match=r"^clean must be 'markdown', got 'html'$"):
        GenerationOptions(clean="html")
    with pytest.raises(InputError, match="clean cannot be used with markup"):
        GenerationOptions(clean="markdown", markup=True)
