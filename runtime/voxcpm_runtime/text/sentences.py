"""Streaming sentence segmentation.

The rules are our own: no library that we tried supports Chinese and English, keeps quotations whole and decides from
nearby text only, so that a sentence can be spoken while the next one is being written. In doubt it does not split: a
pause within a sentence is worse than two sentences in one.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import NamedTuple

from voxcpm_constants.bounds import MAX_SENTENCE_CHARACTERS

_DOTS = ".．"
_ELLIPSIS = "…"
# End a sentence before white space, or before a Chinese or Japanese character.
_SOFT_STOPS = _DOTS + _ELLIPSIS + "!?‼⁇⁈⁉"
# End a sentence anywhere: Chinese, Japanese, Hindi, Arabic, Urdu, Amharic, Khmer, Burmese.
_HARD_STOPS = "。！？｡।॥؟۔።។။"
_STOPS = _SOFT_STOPS + _HARD_STOPS
_PAIRS = {
    "“": "”", "‘": "’", "«": "»", "「": "」", "『": "』", "《": "》", "〈": "〉",
    "(": ")", "[": "]", "{": "}", "（": "）", "【": "】", "〔": "〕", "［": "］",
}  # fmt: skip
_CHINESE_LETTERS = "々-〇぀-ヿ㐀-䶿一-鿿\uf900-\ufaff\U00020000-\U0003ffff"  # and Japanese
_PAIR = re.compile(
    rf"""
    (?P<opens>
        [“‘«「『《〈（【〔［]
        | (?<![:;=-]) [(\[{{]                          # :( opens nothing,
        | (?<![^\s“‘«(\[{{　-〿！-｠{_CHINESE_LETTERS}]) "   # nor does the mark of 5" wide
    )
    | [”»」』》〉)\]}}）】〕］"]
    | ’(?!\w)                                        # an apostrophe closes nothing
    """,
    re.VERBOSE,
)
# Quotations and brackets of up to this many characters are not split. The limit keeps streamed text from waiting for a
# missing closing mark, or for the end of a long quotation.
_MAX_QUOTATION = 200
# Belong to the preceding stop, as emoji do: closing quotes and brackets, and Markdown's emphasis.
_CLOSERS = "\"'*_~" + "".join(_PAIRS.values())
# May precede the first letter of a sentence.
_OPENERS = "\"'*_~¿¡" + "".join(_PAIRS)
# Right after a quotation, these continue the sentence around it.
_CONTINUATIONS = "，、；：,;:—–-と"

_CHINESE = re.compile(f"[{_CHINESE_LETTERS}]")
_WORD_AT_START = re.compile(r"\w[\w.'’]*")
_MAX_WORD = 24
_FRAGMENT = 256
_MAX_WITHOUT_SPACE = 2 * MAX_SENTENCE_CHARACTERS
_MAX_STOPS = 8
_ONE_SENTENCE = re.compile(rf"[^\n{_STOPS}]*[{_STOPS}]*[^\S\n]*")
"""A line without a stop, except at its end: a fast path for most short texts."""
_LETTERS = re.compile(r"[A-Za-zÀ-ɏΑ-ωА-я]|(?:[A-Za-zÀ-ɏΑ-ωА-я]{1,2}\.)+[A-Za-zÀ-ɏΑ-ωА-я]{1,2}")
"""Initials and letters with dots: J, U.S, p.m, Ph.D."""
_ENUMERATION = re.compile(r"\W*(?:\d{1,3}|[A-Za-z]|[ivxIVX]+)")
_LIST_MARKER = re.compile(r"[-*•–—]|#{1,6}|\d{1,3}[.)]?")


def _words(words: str) -> frozenset[str]:
    return frozenset(words.split())


# Abbreviations before a dot, and words after it. Those in lower case also match capitalized.
_NEVER_LAST = _words("cf dr e.g eg i.e ie mr mrs ms messrs prof viz vs")
_NOT_BEFORE_NUMBERS = _words(
    "apt art cor deut ed eph ex exod ezek gal heb isa jer jn lev lk mal matt max min n° no nos nr par pet prov ps "
    "rom rs sam tel thess tim"
)
_AMBIGUOUS = _words("""
adm amb asst atty brig capt cdr cmdr col cpl cpt esq fr gen gov hon insp jr lt maj mme mlle msgr pres pvt rep rev sen
sgt sr supt ave bldg blvd dept ft hwy mt rd st assn bros co corp inc llc ltd univ hr hrs lb
lbs oz doz fl pkg pt qt rt rte sq tbsp tsp
al approx ca ch chap cit eds eq eqs est etc ext fig figs misc p pg pp ref sec tel trans vol vols
Calif Conn Fla Ill Mass Mich Minn Okla Tenn Tex Wash Wis
Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov Dec Mon Tue Tues Wed Thu Thur Thurs Fri Sat Sun
""")
"""End a sentence only before one of `_FIRST_WORDS`, as do initials and other letters with dots."""
_FIRST_WORDS = _words("""
a an the this that these those my your his her its our their some any no every each all both many most such
i he she we they you it there here what which who whom whose when where why how
is are was were be do does did has have had can could should would must
in on at by for from with without after before during since until while as if unless to into over under
between through about against among and but or nor so yet because although though however then still also
again now later today yesterday tomorrow perhaps maybe please let not only just once
i'm i've i'd i'll he's she's it's we're they're you're that's there's let's what's who's don't didn't
""")
"""Function words. None is a name, so a capital means the beginning of a sentence."""
_NOT_FIRST_IN_LOWER_CASE = _words("""
and or nor of in on at by for from with to into over under between through about against among as than
is are was were be do does did has have had can could should would must also
""")
"""In texts whose sentences begin in lower case, these more often continue a sentence than begin one."""


class Sentence(NamedTuple):
    """One sentence of a text."""

    text: str
    """The sentence with the white space after it; the first one also with the white space before."""
    ends_paragraph: bool
    """Whether a blank line follows; False at the end of the text, as the paragraph may continue after a flush."""


def each_sentence(text: str) -> Iterator[Sentence]:
    """Yield the sentences of a complete text, which concatenate to the text. It is read lazily."""
    if text and len(text) <= _FRAGMENT and _ONE_SENTENCE.fullmatch(text):
        yield Sentence(text, ends_paragraph=False)
        return
    cutter = SentenceCutter()
    for start in range(0, len(text), _FRAGMENT):
        yield from cutter.push(text[start : start + _FRAGMENT])
    yield from cutter.flush()


class SentenceCutter:
    """Splits text that arrives in fragments into sentences, in linear time and bounded memory.

    A sentence ends at a stop, at a blank line, and before a list item. After MAX_SENTENCE_CHARACTERS it ends before the
    next word, and after twice as many within a word. It is returned at the first character of the next sentence, or if
    that is ambiguous, as after "U.S.", at the end of that sentence's first word.
    """

    def __init__(self) -> None:
        self._begin()

    def push(self, fragment: str) -> list[Sentence]:
        """Add text, and return the sentences that are now complete."""
        done: list[Sentence] = []
        for char in fragment:
            self._take(char, done)
        return done

    def flush(self) -> list[Sentence]:
        """Return the remaining sentences, as if the text ended here; text pushed later begins a new sentence."""
        done: list[Sentence] = []
        while self._ahead:
            self._decide(done, whole=True)
        if self._text:
            self._cut(done)
        return done

    def _begin(self) -> None:
        self._text: list[str] = []
        self._spoken = False  # Whether the sentence has anything but white space
        self._capital: bool | None = None
        """Whether the sentence's first letter is a capital; None before it."""
        self._word_at = 0  # Index in `_text` where the last word begins
        self._ahead = ""  # Lookahead after a stop, to decide whether the sentence ends there
        self._reset_stop()

    def _reset_stop(self) -> None:
        self._stop = ""  # The stops after the last word
        self._stop_at = 0
        self._closed = False  # Whether the stops were followed by a closing quote or bracket, or an emoji
        self._gap = False  # Whether white space followed; `_lines` counts its line breaks
        self._lines = 0

    def _take(self, char: str, done: list[Sentence]) -> None:
        if len(self._text) >= _MAX_WITHOUT_SPACE:
            self._cut(done)
        if char.isspace():
            while self._ahead:
                self._decide(done, whole=True)
            self._text.append(char)
            self._gap = True
            self._lines += char == "\n"
        elif self._ahead:
            self._ahead += char
            self._decide(done)
        elif self._gap:
            self._after_gap(char, done)
        elif self._stop:
            self._after_stop(char, done)
        else:
            self._within(char)

    def _after_gap(self, char: str, done: list[Sentence]) -> None:
        if self._spoken and (self._lines > 1 or len(self._text) >= MAX_SENTENCE_CHARACTERS):
            self._cut(done)
            self._within(char)
        elif self._stop and (char == "»" or _is_emoji(char)):  # « Oui. »
            self._closed, self._gap = True, False
            self._text.append(char)
        elif self._spoken and (self._stop or self._lines):
            self._ahead = char
            self._decide(done)
        else:
            self._continue(char)

    def _after_stop(self, char: str, done: list[Sentence]) -> None:
        hard = self._stop[-1] in _HARD_STOPS
        if char in _STOPS and not self._closed:
            self._stop = self._stop[-_MAX_STOPS:] + char
            self._text.append(char)
        elif _is_emoji(char) or (char in _CLOSERS and (char != '"' or not hard or self._is_open())):
            self._closed = True
            self._text.append(char)
        elif char not in _STOPS and (hard or _CHINESE.match(char)):
            self._ahead = char
            self._decide(done)
        else:  # as in 3.14 and example.com
            self._reset_stop()
            self._within(char)

    def _within(self, char: str) -> None:
        if char in _STOPS:
            self._stop, self._stop_at = char, len(self._text)
        elif self._capital is None and char.isalpha():
            self._capital = not char.islower()
        self._spoken = True
        self._text.append(char)
        if char in _OPENERS or _CHINESE.match(char):
            self._word_at = len(self._text)

    def _continue(self, char: str) -> None:
        self._word_at = len(self._text)
        self._reset_stop()
        self._within(char)

    def _cut(self, done: list[Sentence]) -> None:
        done.append(Sentence("".join(self._text), self._spoken and self._lines > 1))
        self._begin()

    def _decide(self, done: list[Sentence], *, whole: bool = False) -> None:
        """End the sentence before `_ahead`, continue with it, or wait for more. whole: its first word is complete."""
        ends = self._ends(whole or len(self._ahead) >= _MAX_WORD)
        if ends is None:
            return
        ahead, self._ahead = self._ahead, ""
        if ends and not self._is_open():
            self._cut(done)
        self._continue(ahead[0])
        for char in ahead[1:]:
            self._take(char, done)

    def _is_open(self) -> bool:
        """Whether a quotation or bracket is open within the last `_MAX_QUOTATION` characters."""
        expected_closers: list[str] = []
        for mark in _PAIR.finditer("".join(self._text[-_MAX_QUOTATION:])):
            if mark[0] in expected_closers:
                del expected_closers[expected_closers.index(mark[0]) :]
            elif mark["opens"]:
                expected_closers.append(_PAIRS.get(mark[0], mark[0]))
        return bool(expected_closers)

    def _ends(self, whole: bool) -> bool | None:
        """Whether the sentence ends before `_ahead`; None to wait for more text."""
        if self._lines and _LIST_MARKER.fullmatch(self._ahead):
            if not whole:
                return None
            if not self._ahead[-1].isdecimal():
                return True
        if not self._stop:
            return False
        if self._stop[-1] in _HARD_STOPS:
            return not (self._closed and self._ahead[0] in _CONTINUATIONS)
        first = self._ahead.lstrip(_OPENERS) or (self._ahead if whole else "")
        if not first or (first[0].islower() and len(first) == 1 and not whole):
            return None
        # A text without capitals begins sentences in lower case. iPhone begins with a small letter, but is a name.
        small = first[0].islower() and not first[1:2].isupper()
        continues = small and (self._closed or self._capital is not False)
        if continues or first[0] in _STOPS:  # as in . . .
            return False
        if self._stop.strip(_DOTS + _ELLIPSIS):
            return True
        if self._stop not in _DOTS:
            return self._closed or first[0].isupper()
        return self._ends_at_dot(first, whole)

    def _ends_at_dot(self, first: str, whole: bool) -> bool | None:
        """Whether the sentence ends at a single dot; None as in `_ends`. first: `_ahead` from its first letter."""
        if self._stop_at < _MAX_WORD and _ENUMERATION.fullmatch("".join(self._text[: self._stop_at])):
            return False
        word = "".join(self._text[self._word_at : self._stop_at][-_MAX_WORD:])
        word = re.split(r"[^\w.°]", word)[-1].strip(".")
        forms = {word, word.lower()}
        if forms & _NEVER_LAST or (first[0].isdecimal() and forms & _NOT_BEFORE_NUMBERS):
            return False
        if not forms & _AMBIGUOUS and not _LETTERS.fullmatch(word):
            return True
        found = _WORD_AT_START.match(first)
        if found is None:
            return False
        if found[0] == first and not whole:
            return None
        begins = first[0].isupper() or (self._capital is False and found[0] not in _NOT_FIRST_IN_LOWER_CASE)
        return begins and found[0].replace("’", "'").strip("'").lower() in _FIRST_WORDS


def _is_emoji(char: str) -> bool:
    """Whether the character is an emoji or a part of one, such as a joiner; it belongs to the sentence before it."""
    return char == "\u200d" or (
        char > "\u2190" and unicodedata.category(char) in ("So", "Sk", "Mn", "Me", "Cf")
    )
