"""The reading of `normalize`: numbers, dates, money and symbols in words, and no markup or emoji.

As in upstream (`utils/text_normalize.py`), a text with a Chinese character is Chinese, and any other is English.
English is read by `voxcpm_runtime.english`, Chinese by wetext, whose grammars are part of its wheel, so nothing is
downloaded. In Chinese the result equals upstream's, except where upstream fails or adds words:

- The only quotation marks that upstream replaces are “ and ”. Here every double one becomes ", every single one and
  every apostrophe '. Ellipses and dashes stay: the tokenizers know them.
- wetext 0.1.8 puts a backslash before each " and each backslash, and upstream says them. Here they are removed.
- Full-width letters become ASCII (published vocabularies have the lower-case ones as bytes only), and so do
  full-width numbers with a sign inside: １２：３０ is a time.
- A composed emoji is removed completely, with its joiners and keycaps.
- `1 < 2 and 3 > 2` is not mistaken for a tag.
"""

from __future__ import annotations

import contextlib
import functools
import re
import unicodedata
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from voxcpm_constants.errors import MissingExtraError
from voxcpm_runtime.text.sentences import sentences
from voxcpm_runtime.text.substitutions import rules, substituted

_CHINESE = re.compile(r"[\u4e00-\u9fff]")


def _compatible(found: re.Match[str]) -> str:
    """Full-width characters as ASCII, except for the colon, which marks a time in Chinese."""
    return "：".join(unicodedata.normalize("NFKC", part) for part in found[0].split("："))


# Markdown and HTML, in this order: code is removed first, whatever is in it.
_MARKUP = rules(
    {
        r"(?s)```.*?```": "",
        r"`[^`]*`": "",
        r"!\[[^]]*]\([^)]+\)": "",  # an image
        r"\[([^]]+)]\([^)]+\)": r"\1",  # a link: only its text is said
        r"(?m)^(\s*)-\s+": r"\1",  # an item of a list
        r"<(?!\s|https?:|mailto:)[^>]+>": "",
        r"(?m)^#{1,6}\s+": "",  # a heading
        r"\\(?![\w\s])": "",  # escapes a mark
    }
)
# Emoji with their skin tones, joiners, keycaps and the tags of flags.
_EMOJI = (
    r"(?:\p{Emoji_Presentation}|\p{Emoji}\uFE0F)"
    r"(?:\p{Emoji_Presentation}|\p{Emoji}\uFE0F|\u200D\p{Extended_Pictographic}?|[\uFE0F\u20E3\U000E0020-\U000E007F])*"
)
_BEFORE_CHINESE = rules(
    {
        r"(?m)^#{1,6}|<(?!\s)[^>]+>": "",  # also #5 and <https://example.com>, which are read in English
        "[“”„‟«»〝〞〟＂]": '"',
        "[‘’‚‛‹›ʼ´＇]": "'",
        r"[−‐‑]|(?<![\dA-Za-z])－(?=\d)": "-",
        r"[Ａ-Ｚａ-ｚ]+|\d+(?:[.:/．：／＋＝]\d+)+[%％]?|\d+％": _compatible,
        # Soft hyphens, direction marks, zero-width spaces; then backslashes that separate words.
        "[\u00ad\u200b\u2060\ufeff\u200e\u200f\u202a-\u202e\u2066-\u2069]": "",
        r"[\s\\]+": " ",
        "=": "等于",  # otherwise wetext reads 550+320=870 wrongly
        r"(?<=[a-zA-Z0-9])-(?=\d)": " - ",  # otherwise x-2 is x and minus two
    }
)
_PRINTED_ASCII = r"[\x00-\x1f!-\x7f]"
_AFTER_CHINESE = rules(
    {
        rf"(?<!{_PRINTED_ASCII}) | (?!{_PRINTED_ASCII})": "",  # spaces stay only between two Latin words
        "²": "平方",
        "³": "立方",
        "√": "根号",
        "≈": "约等于",
        "<": "小于",
        "`": "",
        "[（）【】]|——": " ",
    }
)


def english_room() -> ModuleType | None:
    """The module that reads English; None if that optional package was deleted."""
    spec = find_spec("voxcpm_runtime.english")
    # A folder in which only __pycache__ is left is found, too, as a namespace without an origin.
    if spec is None or spec.origin is None:
        return None
    from voxcpm_runtime.english import reading

    return reading


def normalized(text: str, *, spelled: bool = False) -> str:
    """The text as it is read aloud: in Chinese if it has a Chinese character, otherwise in English.

    spelled: only without markup, for `letters.spelled`, which reads it. Empty if nothing is left, such as for a text of
    emoji. Raises MissingExtraError if the extra `normalize` is missing and the text is Chinese.
    """
    plain = substituted(text, _MARKUP).strip()
    if _CHINESE.search(text):
        return _read_chinese(plain)
    if (english := english_room()) is None:
        raise MissingExtraError(
            "normalize of English text needs voxcpm_runtime.english, which was removed from this installation; "
            "reinstall voxcpm-coreml"
        )
    if spelled:
        return plain
    return "".join(english.read_aloud(sentence.text, spelled=False) for sentence in sentences(plain)).strip()


def _read_chinese(text: str) -> str:
    emoji, normalizer = _chinese_tools()
    text = substituted(emoji.sub("", text), _BEFORE_CHINESE).strip()
    return substituted(_read_by_wetext(text, normalizer), _AFTER_CHINESE)


def _read_by_wetext(text: str, normalizer: Any) -> str:
    """The text as wetext reads it. A text that its grammar rejects is halved until the rejected word is alone."""
    if not text:
        return ""
    with contextlib.suppress(AssertionError, IndexError, RuntimeError, ValueError):  # all mean: rejected
        # wetext escapes quotation marks; the text's own backslashes were removed before.
        if read := normalizer.normalize(text).replace("\\", ""):
            return str(read)
    words = text.split(" ")
    if len(words) == 1:
        return text
    middle = len(words) // 2
    return " ".join(_read_by_wetext(" ".join(half), normalizer) for half in (words[:middle], words[middle:]))


@functools.cache
def _chinese_tools() -> tuple[Any, Any]:
    """The pattern of an emoji and wetext's reader of Chinese, made when they are first needed."""
    try:
        import regex  # `re` has no Unicode properties
        from wetext import Normalizer
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f'normalize of Chinese text needs {error.name}; install it with: pip install "voxcpm-coreml[normalize]"'
        ) from None
    return regex.compile(_EMOJI), Normalizer(lang="zh", operator="tn", remove_erhua=True)
