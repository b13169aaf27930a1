"""Normalised Chinese texts, compared with upstream's `TextNormalizer` on the same wetext."""

import pytest

from upstream_module import upstream_module
from voxcpm_runtime.text.normalization import normalized

CHINESE = [
    "你好，世界。",
    "价格是12.5元，打8折。",
    "¥5.5 $6 你好 €7",
    "北京时间2024年5月6日下午3:05",
    "2024/05/06 开会",
    "电话是１３８００１３８０００",
    "20%的人，１２个",
    "零下-5℃，湿度30%",
    "占1/3，第3章",
    "550 + 320 = 870 千卡",
    "5×6=30，5÷6，x*y=5，对",
    "x²与y³，√4≈2",
    "a<b 时取5",
    "小孩儿玩3个玩意儿",
    "我有 iPhone 15 和 Mac mini 两台",
    "请看[链接](http://example.com)，共5页",
    "`代码`之外有3行",
    "```print(1)```结束",
    "你好😀，👍🏽",
    "繁體字有5個",
    "第1行\n\n- 第2行\n  - 第3行\n## 第4行",
]


@pytest.fixture(scope="module")
def upstream():
    """Upstream's normalizer module, loaded without the packages that the rest of upstream imports."""
    return upstream_module("utils/text_normalize.py").TextNormalizer()


@pytest.mark.parametrize("text", CHINESE)
def test_normalized_text_equals_upstreams(upstream, text):
    assert normalized(text) == upstream.normalize(text)
