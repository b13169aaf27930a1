"""Numbers, dates, money and abbreviations in words, and no markup, as in upstream's `utils/text_normalize.py`.

wetext's grammars do the reading; they are part of its wheel, so nothing is downloaded. The tables below prepare the
text and correct the result. It equals upstream's, except where upstream fails or would say what nobody wrote:

- The only quotation marks that upstream replaces are “ and ”. Here every double one becomes ", every single one and
  every apostrophe ', so that don’t stays a word. Ellipses and dashes stay: the tokenizers know them.
- wetext 0.1.8 puts a backslash before each " and each backslash, and upstream says them. Here they are removed.
- wetext's English grammar fails at two spaces in a row, such as a removed emoji leaves, and at some signs beside a
  digit (5㎏, 5Ω, 5²). Here white space is one space, and a word that wetext cannot read is read without it.
- In English ², ³ and ① are not read as "zero", and − before a number is minus.
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
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from voxcpm_constants.errors import MissingExtraError
from voxcpm_runtime.text.substitutions import Substitution, substituted

_CHINESE = re.compile(r"[\u4e00-\u9fff]")


def _compatible(found: re.Match[str]) -> str:
    """Full-width and circled characters as plain ones, except for the colon, which marks a time in Chinese."""
    return "：".join(unicodedata.normalize("NFKC", part) for part in found[0].split("："))


# Markdown and HTML, in this order: code is removed first, whatever is in it.
_MARKUP: tuple[Substitution, ...] = (
    (re.compile(r"```.*?```", re.DOTALL), ""),
    (re.compile(r"`[^`]*`"), ""),
    (re.compile(r"!\[[^]]*]\([^)]+\)"), ""),  # an image
    (re.compile(r"\[([^]]+)]\([^)]+\)"), r"\1"),  # a link: only its text is said
    (re.compile(r"^(\s*)-\s+", re.MULTILINE), r"\1"),  # an item of a list
    (re.compile(r"<(?!\s)[^>]+>"), ""),
    (re.compile(r"^#{1,6}\s*", re.MULTILINE), ""),  # a heading
)
# Emoji with their skin tones, joiners, keycaps and the tags of flags.
_EMOJI = (
    r"(?:\p{Emoji_Presentation}|\p{Emoji}\uFE0F)"
    r"(?:\p{Emoji_Presentation}|\p{Emoji}\uFE0F|\u200D\p{Extended_Pictographic}?|[\uFE0F\u20E3\U000E0020-\U000E007F])*"
)
_TYPOGRAPHY: tuple[Substitution, ...] = (
    (re.compile("[“”„‟«»〝〞〟＂]"), '"'),
    (re.compile("[‘’‚‛‹›ʼ´＇]"), "'"),
    (re.compile(r"[−‐‑]|(?<![\dA-Za-z])－(?=\d)"), "-"),
    (re.compile(r"[Ａ-Ｚａ-ｚ]+|\d+(?:[.:/．：／＋＝]\d+)+[%％]?|\d+％"), _compatible),
    # Soft hyphens, direction marks, zero-width spaces; then backslashes, which escape a mark or separate words.
    (re.compile("[\u00ad\u200b\u2060\ufeff\u200e\u200f\u202a-\u202e\u2066-\u2069]"), ""),
    (re.compile(r"\\(?![\w\s])"), ""),
    (re.compile(r"[\s\\]+"), " "),
)
_BEFORE_ENGLISH: tuple[Substitution, ...] = (
    (re.compile(r"(?<=\d)：(?=\d)"), ":"),
    # H₂O, 10⁶, ①: digits that wetext cannot read. A single ² or ³ stays for wetext, which reads square metres.
    (re.compile("[⁰¹²³⁴-⁹]{2,}|[⁰¹⁴-⁹]|[₀-₉]+|[①-⑳⓪❶-❿➀-➓]"), lambda found: f" {_compatible(found)} "),
    (re.compile(" +"), " "),
)


def _number_name(number: re.Match[str]) -> str:
    if find_spec("voxcpm_runtime.english") is None:  # an optional room
        return number[0]
    from voxcpm_runtime.english.number_words import number_name

    return number_name(number[0])


_AFTER_ENGLISH: tuple[Substitution, ...] = (
    (re.compile("²"), " squared"),
    (re.compile("³"), " cubed"),
    (re.compile(r"\d+"), _number_name),  # what wetext left, such as beside a letter
)
_BEFORE_CHINESE: tuple[Substitution, ...] = (
    (re.compile("="), "等于"),  # otherwise wetext reads 550+320=870 wrongly
    (re.compile(r"(?<=[a-zA-Z0-9])-(?=\d)"), " - "),  # otherwise x-2 is x and minus two
)
_ASCII = r"[\x00-\x1f!-\x7f]"
_AFTER_CHINESE: tuple[Substitution, ...] = (
    (re.compile(rf"(?<!{_ASCII}) | (?!{_ASCII})"), ""),  # spaces stay only between two Latin words
    (re.compile("²"), "平方"),
    (re.compile("³"), "立方"),
    (re.compile("√"), "根号"),
    (re.compile("≈"), "约等于"),
    (re.compile("<"), "小于"),
    (re.compile("`"), ""),
    (re.compile("[（）【】]|——"), " "),
)


def normalized(text: str) -> str:
    """The text as it is read aloud: in Chinese if it has a Chinese character, otherwise in English.

    Empty if nothing is left, such as for a text of emoji. Raises MissingExtraError if the extra `normalize` is missing.
    """
    plain = emoji_pattern().sub("", substituted(text, _MARKUP).strip())
    language, before, after = (
        ("zh", _BEFORE_CHINESE, _AFTER_CHINESE)
        if _CHINESE.search(text)
        else ("en", _BEFORE_ENGLISH, _AFTER_ENGLISH)
    )
    plain = substituted(substituted(plain, _TYPOGRAPHY), before).strip()
    return substituted(_read(plain, language), after)


def _read(text: str, language: str) -> str:
    """The text as wetext reads it. A text that its grammar rejects is halved until the rejected word is alone."""
    if not text:
        return ""
    normalizer = wetext_normalizer(language)
    with contextlib.suppress(AssertionError, IndexError, RuntimeError, ValueError):  # all mean: rejected
        # wetext escapes quotation marks; the text's own backslashes were removed before.
        if read := normalizer.normalize(text).replace("\\", ""):
            return read
    words = text.split(" ")
    if len(words) > 1:
        middle = len(words) // 2
        return " ".join(_read(" ".join(half), language) for half in (words[:middle], words[middle:]))
    if language == "en" and (plain := _plain(text)) != text:
        return _read(plain, language)
    return text


def _plain(word: str) -> str:
    """The word without compatibility characters: ㎏ as kg, ² in words."""
    return unicodedata.normalize("NFKC", substituted(word, _AFTER_ENGLISH[:2]))


@functools.cache
def wetext_normalizer(language: str) -> Any:
    """wetext's reader of "en" or "zh", made when it is first needed. Raises MissingExtraError without the extra."""
    with _extra():
        from wetext import Normalizer
    return Normalizer(lang=language, operator="tn", remove_erhua=language == "zh")


@functools.cache
def emoji_pattern() -> Any:
    """The compiled pattern of an emoji, joiners and all. Raises MissingExtraError without the extra."""
    with _extra():
        import regex  # `re` has no Unicode properties
    return regex.compile(_EMOJI)


@contextlib.contextmanager
def _extra() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f'normalize needs {error.name}; install it with: pip install "voxcpm-coreml[normalize]"'
        ) from None
