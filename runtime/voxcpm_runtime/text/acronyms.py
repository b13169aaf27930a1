"""Words in capitals: which are said as words, and which letter by letter."""

from __future__ import annotations

import re
from collections.abc import Callable

from voxcpm_runtime.text.letter_names import letter_by_letter
from voxcpm_runtime.text.substitutions import Substitution, word_set

_RESPELLED = {
    "ASCII": "askey", "GUI": "gooey", "JPEG": "jay peg", "JPG": "jay peg", "JSON": "jason", "MPEG": "em peg",
    "SQL": "sequel", "PHD": "pee aitch dee", "OK": "okay", "USR": "user", "WWI": "world war one",
    "WWII": "world war two", "YAML": "yamel",
}  # fmt: skip
"""Acronyms that are said neither as they are written nor letter by letter."""
_AS_WORDS = word_set(
    """AIDS ANOVA BIOS CAD CAPTCHA COVID DOS FAQ GIF GNU LAN LASER MERS MIDI NAFTA NASA NASDAQ NATO NORAD OPEC OSHA PIN
    RAM REM ROM SARS SCUBA SIM SONAR SWAT UNESCO UNICEF WAN ZIP"""
)
_BY_LETTER = word_set(
    """AAA ABC ACLU AI AKA API APR ASAP ATM BA BBC BIO CEO CIA DIY EDU EULA EU FBI GOV HIV ICU ID IEEE IO IOU IQ
    IRA IRS ISO ISP LA LED MIA MOU MRI NAACP NBA NYU OS PC PDF PO PR RIP SAT SOS TA TIA UAE UCLA UFO UI UN UPS
    URL USA USAF USB UX VIP YMCA"""
)
"""Acronyms that could be said as words and are not, in headings either."""
_AMBIGUOUS = word_set("AM CAN IT US WHO")
"""Words in a text of capitals, otherwise acronyms."""
_WORDS = word_set(
    """ALL AN AND ANY ARE AS AT BAD BE BIG BOY BUT BUY BY CAR CAT DAY DID DO DOG EAT END FEW FOR FUN GET GO GOD GOT
    HAD HAS HE HER HEY HIM HIS HOT HOW IF IN IS ITS JOB LAW LET LOT LOW MAN MAY ME MEN MY NEW NO NOR NOT NOW OF
    OFF OH OLD ON ONE OR OUR OUT OWN PUT RED RUN SAD SAY SEE SET SHE SIX SO SUN TEN THE TO TOO TOP TRY TWO UP
    USE WAR WAS WAY WE WHY WIN YES YET YOU"""
)
"""Short words that are often written in capitals."""
_SOUNDS = word_set("brr grr hm hmm mm mmm nth pfft psst sh shh th tsk zzz")
"""What is written without vowels and is no acronym."""

_SAYABLE = re.compile(
    r"""
    (?:sch|scr|shr|spl|spr|squ|str|thr|ch?[lr]?|ph[lr]?|qu|rh|s[chklmnptw]|sh|t[hrw]|wh|wr|gh|gn|kn|
       [bfgkp][lr]|d[rw]|[bcdfghjklmnprstvwxyz])?
    [aeiouy]{1,3}
    (?:[bcdfghjklmnpqrstvwxz]{1,3}[aeiouy]{1,3})*
    (?:[lmnr]?(?:[bcdfgkmnpstvxz]|th|sh|ch|ck|ll|ss|ff|zz|st|ct|ft|pt|xt|sk|sp|ng|nk|ght|ngth|tch|ld|lth|w|h|l|r)?s?)
    """,
    re.VERBOSE | re.IGNORECASE,
)
_CAPITALS = re.compile(r"(?<![\w'])([A-Z]{2,})('?s)?(?![\w]|'[a-rt-z])")
_ANY_WORD = re.compile(r"[A-Za-z]{2,}")
_LONGEST_WORD = 40
_SURELY_WORD = 6
"""Letters from which a word in capitals is a word, if it has a vowel."""


def is_sayable(word: str) -> bool:
    """Whether a reader could say the letters as a word: "nasa", and neither "fb" nor "html"."""
    if len(word) < 3:
        return word.upper() in _WORDS
    return len(word) <= _LONGEST_WORD and _SAYABLE.fullmatch(word) is not None


def has_vowel(word: str) -> bool:
    """Whether the word has a vowel, y included."""
    return re.search("[AEIOUYaeiouy]", word) is not None


def said_acronym(capitals: str, ending: str = "") -> str | None:
    """A known acronym in words; None for others. ending: "", "s" or "'s"."""
    if capitals in _RESPELLED:
        return _RESPELLED[capitals] + ending
    if capitals in _AS_WORDS:
        return capitals.lower() + ending
    return letter_by_letter(capitals, ending) if capitals in _BY_LETTER else None


def with_capitals_said(sentence: str) -> str:
    """The sentence with every word of capitals as it is said: a word in small letters, or the names of its letters."""
    found = _ANY_WORD.findall(sentence)
    capitals = [word for word in found if word.isupper()]
    heading = len(capitals) > 1 and 2 * len(capitals) >= len(found) and any(map(_is_word, capitals))
    return _CAPITALS.sub(_heading_word if heading else _text_word, sentence)


def _is_word(capitals: str) -> bool:
    return capitals in _WORDS or (
        len(capitals) > 3
        and capitals not in _BY_LETTER | _AMBIGUOUS
        and (is_sayable(capitals) or (len(capitals) >= _SURELY_WORD and has_vowel(capitals)))
    )


def _reader(is_word: Callable[[str], bool]) -> Callable[[re.Match[str]], str]:
    def read(found: re.Match[str]) -> str:
        capitals, ending = found[1], found[2] or ""
        if said := said_acronym(capitals, ending):
            return said
        return found[0].lower() if is_word(capitals) else letter_by_letter(capitals, ending)

    return read


_text_word = _reader(_is_word)
_heading_word = _reader(
    lambda capitals: (
        _is_word(capitals) or capitals in _AMBIGUOUS or (len(capitals) > 2 and is_sayable(capitals))
    )
)


def _without_vowels(found: re.Match[str]) -> str:
    return found[0] if found[0] in _SOUNDS else letter_by_letter(found[0])


LETTERS_SAID_SINGLY: tuple[Substitution, ...] = (
    # Initials: U.S., J.R.R. Tolkien, George W. Bush.
    (
        re.compile(r"(?<![\w.'])(?:[A-Za-z]\.){2,20}(?:[A-Za-z](?![\w']))?"),
        lambda found: letter_by_letter(found[0].replace(".", "")),
    ),
    (re.compile(r"(?<![\w.'])([A-Z])\.(?=\s*[A-Z])"), lambda found: letter_by_letter(found[1])),
    # iPhone, eBay
    (re.compile(r"(?<!\w)([ei])(?=[A-Z])"), lambda found: f"{letter_by_letter(found[1])} "),
    # A is an article before a word, and a letter elsewhere.
    (re.compile(r"(?<![\w'])A(?=-[a-z]|[^\w\s'-]|\s*$)"), "ay"),
    (re.compile(r"(?<![\w'])[B-HJ-Zb-hj-z](?!\w|'[a-rt-z])"), lambda found: letter_by_letter(found[0])),
    (re.compile(r"(?<![\w'])[b-df-hj-np-tv-xz]{2,5}(?![\w'])"), _without_vowels),
)
