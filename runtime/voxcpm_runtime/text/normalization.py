"""Text normalization: from written text to spoken words.

With `normalize`, numbers, dates, money and symbols become words, and markup and emoji are removed. As in upstream
(`utils/text_normalize.py`), a text with a Chinese character is Chinese, and any other is English. The package
`english` reads English, wetext Chinese. In Chinese the result equals upstream's, except where upstream fails or adds
words: every quotation mark becomes " or ', wetext's backslashes are removed, full-width letters and numbers with
punctuation inside become ASCII, a composed emoji is removed completely, and `1 < 2 and 3 > 2` is not parsed as a tag.

A vocabulary of letters, such as the built-in voice's, needs everything in words: `spelled`. Published vocabularies have
every character, and their texts are not changed.
"""

from __future__ import annotations

import contextlib
import functools
import re
import unicodedata
from collections.abc import Callable
from typing import Any

from anyascii import anyascii

from voxcpm_constants.errors import InputError, MissingExtraError, install_command, warn
from voxcpm_runtime.text.languages import may_be_english
from voxcpm_runtime.text.sentences import each_sentence
from voxcpm_runtime.text.substitution import rules, substituted
from voxcpm_runtime.text.tokenizer import CHINESE, TextTokenizer

_LAST_LATIN = "\u024f"
_PAUSES = ";:()[]{}–—"  # Become a comma if the vocabulary lacks them
_STOPS = ".!?"
_MAX_SHOWN = 60  # Characters of the text in an error message
_MAX_LISTED = 10


def _to_ascii(match: re.Match[str]) -> str:
    """Full-width characters as ASCII, except for the colon, which marks a time in Chinese."""
    return "：".join(unicodedata.normalize("NFKC", part) for part in match[0].split("："))


# Markdown and HTML. Code goes first, so that its content is not parsed.
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
# Emoji with skin tones, joiners, keycaps and flag tags.
_EMOJI = (
    r"(?:\p{Emoji_Presentation}|\p{Emoji}\uFE0F)"
    r"(?:\p{Emoji_Presentation}|\p{Emoji}\uFE0F|\u200D\p{Extended_Pictographic}?|[\uFE0F\u20E3\U000E0020-\U000E007F])*"
)
_AMOUNT, _TO = r"\d{1,4}(?:\.\d+)?", "[-~～—–]"
_WON = "(?:[大战险完]?胜|[惜落]败|击败|[战打]平|领先|落后|逆转)"
_CHINESE_PREPROCESSING = rules(
    {
        r"(?m)^#{1,6}|<(?!\s)[^>]+>": "",  # also #5 and <https://example.com>, which are read in English
        r"[\u2160-\u217f]": lambda match: str(int(unicodedata.numeric(match[0]))),  # Ⅳ
        "[“”„‟«»〝〞〟＂]": '"',
        "[‘’‚‛‹›ʼ´＇]": "'",
        r"[−‐‑]|(?<![\dA-Za-z])－(?=\d)": "-",
        r"[Ａ-Ｚａ-ｚ]+|(?<!\d)\d+(?:[.:/．：／＋＝]\d+)+[%％]?|(?<!\d)\d+％": _to_ascii,
        # Soft hyphens, direction marks, zero-width spaces; then backslashes that separate words.
        "[\u00ad\u200b\u2060\ufeff\u200e\u200f\u202a-\u202e\u2066-\u2069]": "",
        r"[\s\\]+": " ",
        r"(?<=\d)-(?=\d+\s*(?:=|等[于於]))": " - ",  # a subtraction
        rf"(比分[是为]?\s?\d{{1,3}})-(?=\d)|(?<![\d.-])(\d{{1,3}})-(?=\d{{1,3}}{_WON})": r"\1\2比",
        r"(?<![\d.:/-])(\d{1,2})-(\d{1,2})-(?=\d{1,2}[天周岁次个])": r"\1、\2、",  # a list of intervals
        r"(\d/\d+)[-~～—–](?=\d+/\d)": r"\1到",
        r"(?<=约)(?=\d+/\d)": " ",  # otherwise 约1/2 is 二分之约一
        # A range, but no part of a date or a telephone number; wetext reads some without a unit as subtractions.
        rf"[¥￥]({_AMOUNT}){_TO}({_AMOUNT})元?": r"\1到\2元",
        rf"(?<![\d.:/-])({_AMOUNT}){_TO}(?={_AMOUNT}%)": r"\1%到",
        rf"(?<![\d.:/-])({_AMOUNT}%?){_TO}(?=(?!0\d){_AMOUNT}(?![\d./:-]))": r"\1到",
        "=": "等于",  # otherwise wetext reads 550+320=870 wrongly
        r"(?<![a-zA-Z])([a-z])-(?=\d)": r"\1减",  # otherwise x-2 is x and minus two
        r"(?<=[a-zA-Z])-(?=\d)": " ",  # a name, such as GPT-4 or B-2
    }
)
_PRINTED_ASCII = r"[\x00-\x1f!-\x7f]"
_CHINESE_POSTPROCESSING = rules(
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
# Replacements leave spaces before punctuation, and commas next to other marks.
_TIDYING = rules(
    {
        r"\s+": " ",
        r"[ ,]+(?=[,.!?])": "",
        r"(?<=[.!?])[ ,]*,": "",
        r"\.+": ".",
        r"\.(?=[!?])|(?<=[!?])\.": "",
        r",(?=[^\W_])": ", ",
        r"(?<=[.!?])(?=[^\W_])": " ",
    }
)


def said_text(text: str, *, normalize: bool = False, letters_only: bool = False) -> str:
    """The text on one line (upstream `core.py`), normalized if `normalize`.

    Raises InputError if nothing is left to say, and the errors of `normalized`.
    """
    said = re.sub(r"\s+", " ", text)
    if normalize:
        # VoxCPM's own input, such as {ni3}, is left alone.
        parts = re.split(r"(\s*\{[^{}]*\}\s*)", said)
        parts[::2] = (normalized(part, letters_only=letters_only) for part in parts[::2])
        said = "".join(parts)
    if normalize and not said.strip():
        raise InputError(
            "only emoji, code or markup in the text; expected words to speak",
            argument="text",
        )
    return said


def normalized(text: str, *, letters_only: bool = False) -> str:
    """The text as it is read aloud, as Chinese if it has a Chinese character, otherwise as English; it may be empty.

    letters_only: for a vocabulary of letters; then `spelled` reads English, and only markup is removed here. Raises
    MissingExtraError if the text is Chinese and the extra `normalize` is missing.
    """
    plain = substituted(text, _MARKUP).strip()
    if CHINESE.search(text):
        return _read_chinese(plain)
    if (read_aloud := english_reader()) is None:
        raise MissingExtraError(
            "normalize of English text needs voxcpm_runtime.text.english, which was removed from this installation; "
            "reinstall voxcpm-coreml"
        )
    # NFKC: full-width letters are Latin.
    letters = [char for char in unicodedata.normalize("NFKC", plain) if char.isalpha()]
    # Numbers of Korean, Arabic or French are left to the voice, which would otherwise say them in English.
    is_latin = 2 * sum(char > _LAST_LATIN for char in letters) <= len(letters)
    if letters_only or not is_latin or not may_be_english(plain):
        return plain
    return "".join(read_aloud(sentence.text, spelled=False) for sentence in each_sentence(plain)).strip()


def spelled(text: str, tokenizer: TextTokenizer, argument: str = "text", *, strict: bool = False) -> str:
    """The text as it is read aloud, for a vocabulary of letters; unchanged if the vocabulary has digits.

    The result has lowercase letters and the vocabulary's punctuation. Letters of other alphabets are transliterated, or
    left out if nothing is known for them. Not idempotent: in lower case, the name Max is an abbreviation. Raises
    InputError if nothing is left to say, and for letters of other alphabets if `strict`.
    """
    return spelled_and_foreign(text, tokenizer, argument, strict=strict)[0]


def spelled_and_foreign(
    text: str, tokenizer: TextTokenizer, argument: str = "text", *, strict: bool = False
) -> tuple[str, str]:
    """`spelled`, and the letters of other alphabets in it, each once."""
    if not tokenizer.has_letters_only:
        return text, ""
    foreign = ""
    read_aloud = english_reader() or str
    # Sentence by sentence, to keep the stop of an abbreviation that ends one.
    said = [read_aloud(sentence.text).lower() for sentence in each_sentence(text)]
    # Each character once: whether it has a token does not depend on its neighbours.
    if unknown := tokenizer.unknown_characters("".join(dict.fromkeys("".join(said)))):
        replacements = {ord(char): _replacement(char) for char in unknown}
        left = set(tokenizer.unknown_characters("".join(replacements.values())))
        foreign = "".join(char for char in unknown if left.intersection(replacements[ord(char)]))
        if foreign and strict:
            raise InputError(
                f"this voice knows the letters a to z only, and cannot say {listed(foreign)}; write the text in "
                "English letters, or leave out strict to transliterate them",
                argument=argument,
            )
        replacements |= {ord(char): _transliterated(char, tokenizer) for char in foreign}
        said = [part.translate(replacements) for part in said]
    whole = " ".join(filter(None, map(_tidy, said)))
    if not whole:
        raise InputError(
            f"nothing to say in {text[:_MAX_SHOWN]!r}: this voice knows letters only",
            argument=argument,
        )
    return whole, foreign


def check_sayable(text: str, tokenizer: TextTokenizer) -> None:
    """Raises the InputError of `strict` for letters of other alphabets, without reading the whole text aloud."""
    if tokenizer.has_letters_only:
        for char in dict.fromkeys(text):
            if char.isalpha() and not char.isascii():
                spelled(f"a {char} a", tokenizer, strict=True)


def listed(characters: str) -> str:
    """The first few characters for a message, and the number of the others."""
    more = f" and {len(characters) - _MAX_LISTED} more" if len(characters) > _MAX_LISTED else ""
    return ", ".join(map(repr, characters[:_MAX_LISTED])) + more


def warn_of_replaced(foreign: str, unknown: str) -> None:
    """Warn of letters that were transliterated, and of characters without a token."""
    if foreign:
        warn(f"this voice knows the letters a to z only: {listed(foreign)} transliterated or left out")
    if unknown:
        warn(f"this voice has no token for {listed(unknown)}: skipped")


def spelled_transcript(transcript: str, tokenizer: TextTokenizer, *, strict: bool = False) -> str:
    """The transcript, for a vocabulary of letters as `spelled` rewrites it with a trailing space."""
    if not transcript or not tokenizer.has_letters_only:
        return transcript
    return f"{spelled(transcript, tokenizer, 'prompt_text', strict=strict)} "


def continued_transcript(said: str, tokenizer: TextTokenizer) -> str:
    """The transcript of a segment, ready to be concatenated with the following ones, before it is spelled.

    For a vocabulary of letters a blank line separates them, so that each is spelled as it was alone, even if it ends
    within a sentence. Otherwise a space does, if the script uses spaces.
    """
    if tokenizer.has_letters_only:
        return f"{said}\n\n"
    last = said[-1:] or " "
    return said if last.isspace() or unicodedata.east_asian_width(last) in "WF" else f"{said} "


def english_reader() -> Callable[..., str] | None:
    """`english.reading.read_aloud`; None if that optional package was deleted."""
    try:
        from voxcpm_runtime.text.english.reading import read_aloud
    except ImportError:
        return None
    return read_aloud


def _replacement(char: str) -> str:
    """The replacement of an unknown character: a comma for a long dash, e for é."""
    if char in _PAUSES:
        return ","
    if not char.isalpha():
        return " "
    return "".join(c for c in unicodedata.normalize("NFKD", char) if not unicodedata.combining(c))


def _transliterated(char: str, tokenizer: TextTokenizer) -> str:
    """A letter of another alphabet in those of the vocabulary: zhong for 中; empty if none is known."""
    latin = anyascii(char).lower()
    unknown = tokenizer.unknown_characters(latin)
    latin = "".join(c for c in latin if c not in unknown)
    # A Chinese character is a syllable, and a word of its own here.
    return f" {latin} " if CHINESE.match(char) else latin


def _tidy(text: str) -> str:
    """The sentence with single spaces and punctuation marks, and a final stop; empty if it has no letters."""
    tidy = substituted(text, _TIDYING).strip(" ,")
    if not any(map(str.isalpha, tidy)):
        return ""
    tidy = tidy.lstrip(" ,.!?-'") if tidy[0] in ".!?,-" else tidy
    return tidy if tidy[-1] in _STOPS else f"{tidy}."


def _read_chinese(text: str) -> str:
    emoji, normalizer = _chinese_tools()
    text = substituted(emoji.sub("", text), _CHINESE_PREPROCESSING).strip()
    return substituted(_read_by_wetext(text, normalizer), _CHINESE_POSTPROCESSING)


def _read_by_wetext(text: str, normalizer: Any) -> str:
    """The text as wetext reads it. A text that its grammar rejects is bisected to leave the rejected word unchanged."""
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
    """The emoji pattern, and wetext's normalizer of Chinese."""
    try:
        import regex  # `re` has no Unicode properties
        from wetext import Normalizer
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"normalize of Chinese text needs {error.name}; install it with: {install_command('normalize')}"
        ) from None
    return regex.compile(_EMOJI), Normalizer(lang="zh", operator="tn", remove_erhua=True)
