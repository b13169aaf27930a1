"""Vocabularies of letters, and differences from upstream in Chinese.

`tests/validation/test_text_normalization.py` compares with upstream's results.
Readings of English are in `tests/runtime/text/english/data/english_readings.tsv`.
"""

import sys
import time

import pytest

from voxcpm_constants.errors import InputError, MissingExtraError
from voxcpm_runtime.text import normalization
from voxcpm_runtime.text.normalization import normalized, said_text, spelled, spelled_transcript, substituted
from voxcpm_runtime.text.tokenizer import TextTokenizer

OTHER_LANGUAGES = (
    "J’ai 20 ans.", "Tengo 5 perros y 2 gatos.", "Das kostet 20 Euro.", "Ho 3 gatti.", "To kosztuje 20 złotych.",
    "Saat 5'te gel.", "Jag har 3 katter.", "Tôi có 3 con mèo.",
    # Without a function word.
    "Ali 3 elma yedi.", "Mamy 3 koty", "Peter isst 3 Brote.", "Juan compra 3 manzanas.", "Lan mua 3 cam", "Seite 5",
    "Kati osti 3 omenaa.", "Budi makan 3 apel",
)  # fmt: skip


WITH_NUMBERS = (
    "3 chats", "Los Angeles has 5 teams", "Robert De Niro, aged 76", "Room 5", "Red Hat 9",
    "Dvořák's Symphony No. 9", "The Polish word że has 2 letters", "my iPhone 15", "3 eggs", "Room 12B", "5 km",
    "Dr. Li, 2 p.m.", "Ali ate 3 apples.", "Add 2 eggs.", "Boeing 747", "2 cups sugar",
)  # fmt: skip


@pytest.mark.parametrize("text", WITH_NUMBERS)
def test_english_numbers_are_read_with_foreign_names(text):
    assert not any(map(str.isdigit, normalized(text)))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("他说“我有5个‘苹果’”", "他说\"我有五个'苹果'\""),
        ('他说\\"5\\\\个', '他说"五个'),
        ("hello 😀 world 你好", "hello world你好"),
        ("−5℃和－６℃", "负五摄氏度和负六摄氏度"),
        ("３：０５开会，价格１２．５０元", "三点零五分开会，价格十二点五零元"),
        ("５＋６＝１１，对吗？", "五加六等于十一，对吗？"),
        ("#5号 <https://example.com>", "五号"),
        ("第Ⅲ章", "第三章"),
        ("等3-5天", "等三到五天"),
        ("约10-15分钟", "约十到十五分钟"),
        ("第3-5章，3～5个，3–5平米", "第三到五章，三到五个，三到五平米"),
        ("¥100-200，涨3-5%", "一百到两百元，涨百分之三到百分之五"),
        ("3-5-7天，加1/2-2/3杯", "三、五、七天，加二分之一到三分之二杯"),
        ("大约1/2的人", "大约二分之一的人"),
        ("比分3-2，以2-1胜", "比分三比二，以二比一胜"),
        ("电话010-62345678，2024-05-01生", "电话零一零六二三四五六七八，二零二四年五月一日生"),
        ("x-2的值，B-2轰炸机", "x减二的值，B二轰炸机"),
        ("2020-2025年", "二零二零到二零二五年"),
        ("550-320=230，对", "五百五十减三百二十等于两百三十，对"),
        ("GPT-4模型", "GPT四模型"),
        ("COVID-19 疫情", "COVID十九疫情"),
        ("고양이 3마리가 있다.", "고양이 3마리가 있다."),
        ("هناك 3 قطط", "هناك 3 قطط"),
        *((text, text) for text in OTHER_LANGUAGES),
    ],
)
def test_normalization_differing_from_upstream(text, said):
    assert normalized(text) == said


@pytest.mark.parametrize("text", ["👨‍👩‍👧‍👦 🏃‍♂️", "🏴󠁧󠁢󠁥󠁮󠁧󠁿🇺🇸❤️‍🔥", "<br>", "```5 你好```"])
def test_text_without_words_becomes_empty(text):
    assert normalized(text) == ""


@pytest.mark.parametrize("unit", ["1", "1-", "1.1~", "¥1", "比分1"])
def test_rules_of_chinese_take_linear_time(unit):
    started = time.process_time()
    substituted(unit * (20_000 // len(unit)), normalization._CHINESE_PREPROCESSING)
    # A quadratic pattern takes 20 s.
    assert time.process_time() - started < 5


def test_input_in_braces_is_left_alone():
    said = said_text("It is 5: {HH AH0}{ni3} and  {hao3 2} 6.", normalize=True)
    assert said == "It is five: {HH AH0}{ni3} and {hao3 2} six."
    with pytest.raises(InputError, match="only emoji"):
        said_text("🙂", normalize=True)


@pytest.mark.parametrize("module", ["kaldifst", "regex"])
def test_missing_chinese_package_names_the_extra(monkeypatch, module):
    """The package counts as not installed, and nothing of wetext is imported yet."""
    for name in [name for name in sys.modules if name.partition(".")[0] in {"wetext", module}]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    normalization._chinese_tools.cache_clear()
    with pytest.raises(MissingExtraError, match=rf'{module}; .*"voxcpm-coreml\[normalize\]"'):
        normalized("现在5点。")
    assert normalized("It is 5 o'clock 🙂.") == "It is five o'clock."


def test_missing_english_package_is_a_one_line_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "voxcpm_runtime.text.english.reading", None)
    with pytest.raises(MissingExtraError, match=r"needs voxcpm_runtime\.text\.english"):
        normalized("It is 5 o'clock.")
    assert normalized("现在5点。") == "现在五点。"


def test_foreign_letters_are_transliterated_unless_strict(letters):
    said = {
        "Say 中 please.": "say zhong please.", "ΔT is 3 degrees.": "delta tee is three degrees.",
        "Hawaiʻi is nice.": "hawaii is nice.", "The ə in it.": "the e in it.", "你好 there": "ni hao there.",
        "Привет.": "privet.", "I saw 🙂 it": "i saw it.",
    }  # fmt: skip
    assert {text: spelled(text, letters) for text in said} == said
    for text, reason in (
        ("你好 there", "'你', '好'; "),
        ("the λό", "'λ', 'ό'; "),
        ("...", "nothing to say in"),
    ):
        with pytest.raises(InputError, match=reason):
            spelled(text, letters, strict=True)


def test_vocabulary_with_digits_leaves_text_unchanged(shared_data):
    published = TextTokenizer.from_folder(shared_data / "tokenizer")
    assert spelled("“3 naïve” 你好", published) == "“3 naïve” 你好"
    assert spelled_transcript("said", published) == "said"
