"""Differences from upstream; `tests/validation/test_text_normalization.py` compares with upstream's own results."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from voxcpm_constants.errors import MissingExtraError
from voxcpm_runtime.text import normalization as text_normalization
from voxcpm_runtime.text.normalization import normalized
from voxcpm_runtime.text.tokenizer import TextTokenizer


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("She didn’t say “no”, it’s 5 o’clock.", "She didn't say \"no\", it's five o'clock."),
        ("‘Yes’ — ‹oui› and ‚ja‘", "'Yes' — 'oui' and 'ja'"),
        ("„Ja“, «oui», ”ja” and ＂yes＂", '"Ja", "oui", "ja" and "yes"'),
        ("他说“我有5个‘苹果’”", "他说\"我有五个'苹果'\""),
        ("wait… what", "wait… what"),
    ],
)
def test_every_quotation_mark_is_a_plain_one(text, said):
    assert normalized(text) == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('Say "five" \\"5\\" times.', 'Say "five" "five" times.'),
        ("C:\\Users and 5\\6", "C: Users and five six"),
        ('他说"5个"', '他说"五个"'),
        ("\\", ""),
    ],
)
def test_no_backslash_is_said(text, said):
    assert normalized(text) == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("I am 🙂 5 years old", "I am five years old"),
        ("hello 😀 world 你好", "hello world你好"),
        (
            "On May 5th, 2024 it weighed 5㎏ in all",
            "On May fifth, twenty twenty four it weighed five kilograms in all",
        ),
        ("a resistor of 5Ω and 3.5 V", "a resistor of fiveΩ and three point five V"),
        ("12 and ❤3❤", "twelve and ❤three❤"),
        ("é" + "1" * 40, "é" + " ".join(["one"] * 40)),
    ],
)
def test_what_upstream_stops_at_is_said(text, said):
    assert normalized(text) == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x² + y³", "x squared plus y cubed"),
        ("5²", "five squared"),
        ("H₂O is ① of 10⁶", "H two O is one of ten six"),
        ("it was −5 degrees", "it was negative five degrees"),
        ("−5℃和－６℃", "负五摄氏度和负六摄氏度"),
        ("COVID‑19", "COVID-nineteen"),
        ("1 < 2 and 3 > 2", "one < two and three > two"),
    ],
)
def test_signs_are_said_for_what_they_are(text, said):
    assert normalized(text) == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Ｈｅｌｌｏ　Ｂｏｂ", "Hello Bob"),
        ("at １２：３０, １２％ of １．５", "at twelve thirty, twelve percent of one point five"),
        ("３：０５开会，价格１２．５０元", "三点零五分开会，价格十二点五零元"),
        ("５＋６＝１１，对吗？", "五加六等于十一，对吗？"),
    ],
)
def test_full_width_forms_are_read_as_plain_ones(text, said):
    assert normalized(text) == said


@pytest.mark.parametrize(
    "text", ["👍", "👨‍👩‍👧‍👦 🏃‍♂️", "1️⃣", "🏴󠁧󠁢󠁥󠁮󠁧󠁿🇺🇸❤️‍🔥", "\u200b\u00ad", "<br>", "```5 你好```", " "]
)
def test_of_what_has_no_words_nothing_is_left(text):
    assert normalized(text) == ""


def test_published_vocabularies_know_what_is_left(shared_data):
    tokenizer = TextTokenizer.from_folder(shared_data / "tokenizer")
    text = "„don’t“ … ａｂｃ １２：３０ — «5㎏» 😀 你好，“世界”……"

    assert "<0xEF>" in tokenizer.tokens(text)  # ａ, as its bytes
    assert not [token for token in tokenizer.tokens(normalized(text)) if token.startswith("<0x")]


def test_threads_may_share_it():
    text_normalization.wetext_normalizer.cache_clear()
    texts = ["At 5:30 pm, 50%.", "下午5:30，50%"] * 20

    with ThreadPoolExecutor(4) as pool:
        said = set(pool.map(normalized, texts))

    assert said == {"At five thirty PM, fifty percent.", "下午五点三十分，百分之五十"}


@pytest.mark.parametrize("module", ["wetext", "kaldifst", "regex"])
def test_a_missing_package_is_one_line_that_names_the_extra(monkeypatch, module):
    """The package counts as not installed, and nothing of wetext is imported yet."""
    for name in [name for name in sys.modules if name.partition(".")[0] in {"wetext", module}]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    for cached in (text_normalization.wetext_normalizer, text_normalization.emoji_pattern):
        cached.cache_clear()

    with pytest.raises(
        MissingExtraError, match=rf'normalize needs {module}; .* pip install "voxcpm-coreml\[normalize\]"'
    ) as caught:
        normalized("It is 5 o'clock.")
    assert "\n" not in str(caught.value)


def test_it_is_quiet_and_imports_nothing_before_its_first_text():
    script = (
        "import sys, voxcpm_runtime.speech.plan\n"
        "assert not {'wetext', 'kaldifst', 'regex', 'num2words'} & set(sys.modules), 'imported too early'\n"
        "from voxcpm_runtime.text.normalization import normalized\n"
        "assert normalized('5Ω 5') == 'fiveΩ five' and normalized('5个') == '五个'\n"
    )

    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
