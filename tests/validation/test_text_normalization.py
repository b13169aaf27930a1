"""Texts in words, compared with upstream's `TextNormalizer` on the same wetext."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from voxcpm_runtime.text.normalization import normalized

ENGLISH = [
    "Hello, world.",
    "It's fine, isn't it? They've said so.",
    "It costs $12.50 or £5, not €6.50.",
    "That is $1.5 million in all.",
    "There were 1,234,567 people and 42 dogs.",
    "On 2024-05-06 at 3:05 pm we met.",
    "May 5th, 2024 was a Sunday; the 21st was not.",
    "The train leaves at 10:30 a.m. and arrives at 5pm.",
    "Call +1 (555) 123-4567 or 555-0100.",
    "50% off, and then 3.5% more!",
    "It was -5 degrees, 0.5 more than before.",
    "Add 1/2 cup, 3/4 spoon and ½ pint.",
    "Dr. Smith lives at 123 Main St.",
    "It weighs 50kg and is 5km away, at 30 km/h.",
    "A room of 50 m² in area.",
    "Write to me@example.com or see http://example.com/a?b=5",
    "COVID-19, A4 paper and B2B.",
    "Version 2.0.3 of 192.168.0.1",
    "007 had 5 * 6 = 30 and 2 + 2 = 4.",
    "See [the manual](https://example.com/page_5) for 3 more.",
    "![a picture](picture.png) It shows 4 cats.",
    "# Chapter 12 begins",
    "- 5 items of a list",
    "Press <b>Enter</b> 2 times.",
    "Wait... what? (Yes: 7.)",
    "café naïve 5",
    "Привет 5",
    "한국 5",
    "© 2024 A&B ™",
    "🙂 Good morning 👍🏽",
    "My number is １２３.",
    "the 1990s and the '90s",
    "9" * 30,
    "",
]
CHINESE = [
    "你好，世界。",
    "价格是12.5元，打8折。",
    "价格 1,234.56 元",
    "¥5.5 $6 你好 €7",
    "北京时间2024年5月6日下午3:05",
    "2024/05/06 开会",
    "13:05:06 出发",
    "电话是１３８００１３８０００",
    "请拨打010-12345678，或13800138000。",
    "20%的人，１２个",
    "零下-5℃，湿度30%",
    "大约3~5个，或3-5天",
    "占1/3，第3章",
    "5km外，重50kg，面积50m²",
    "550 + 320 = 870 千卡",
    "5×6=30，5÷6，x*y=5，对",
    "x-2=5，比分3-2",
    "x²与y³，√4≈2",
    "a<b 时取5",
    "（5）你好【6】——完",
    "小孩儿玩3个玩意儿",
    "我有 iPhone 15 和 Mac mini 两台",
    "你 好 abc def 好",
    "请看[链接](http://example.com)，共5页",
    "`代码`之外有3行",
    "```print(1)```结束",
    "<p>第1段</p>",
    "# 第12章",
    "- 第1项",
    "你好😀，👍🏽",
    "你好……世界——",
    "COVID-19 疫情",
    "他说“好的”",
    "繁體字有5個",
    "日本語かな 5",
    "12：30 集合",
    "GPT-4和A4纸",
    "2025-01-01 00:00:00 整",
]


@pytest.fixture(scope="module")
def upstream():
    """Upstream's normalizer module, loaded without the packages that the rest of upstream imports."""
    package = importlib.util.find_spec("voxcpm")
    path = Path(package.origin).parent / "utils" / "text_normalize.py"
    spec = importlib.util.spec_from_file_location("upstream_text_normalize", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.TextNormalizer()


@pytest.mark.parametrize("text", ENGLISH + CHINESE)
def test_a_text_in_words_is_upstreams(upstream, text):
    assert normalized(text) == upstream.normalize(text)


@pytest.mark.parametrize(
    "text", ["line\n\nline 5\n- item 6\n# head", "第1行\n\n- 第2行\n  - 第3行\n## 第4行"]
)
def test_several_lines_are_upstreams(upstream, text):
    assert normalized(text) == upstream.normalize(text)
