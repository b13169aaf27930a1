"""Words in capitals, initials and addresses: what is said as words, and what letter by letter."""

from __future__ import annotations

import re
from functools import partial

from voxcpm_runtime.english.vocabulary import TABLES, any_of, cardinal, digit_names, letter_by_letter
from voxcpm_runtime.text.normalization import Substitution, rules

_RESPELLED = TABLES.pairs("respelled acronyms")
_AS_WORDS = TABLES.words("acronyms said as words")
_BY_LETTER = TABLES.words("acronyms said by letter")
_AMBIGUOUS = TABLES.words("ambiguous acronyms")
_WORDS = TABLES.words("words in capitals")
_LETTERED = TABLES.words("before letters")
_BEFORE_INITIALS = TABLES.words("before initials")
_SOUNDS = re.compile(r"[hm]+|[bg]r+|s+h+|pf+t*|ps+t+|ts+k+|z+|n?th")
"""What is written without vowels and is no acronym: mhm, hmmm, shhh."""
_SHOUTED = re.compile(
    r"(?<![\w'])[A-Z]+'(?:T|LL|RE|VE|D|M)(?!\w)"
    r"|(?<=\b(?:[Hh]e|[Ww]e|[Ii]t) )CAN(?!\w)|(?<=\b(?:I) )(?:CAN|AM)(?!\w)"
    r"|(?<=\b(?:[Ss]he|[Yy]ou|[Ww]ho) )CAN(?!\w)|(?<=\b[Tt]hey )CAN(?!\w)"
    r"|(?<=\b(?:do|Do) )IT(?=\s*(?:[.,;:!?\"]|$))|(?<=\bdid )IT(?=\s*(?:[.,;:!?\"]|$))"
)
"""What is a word in capitals by its ending or by the word beside it: CAN'T, she CAN do IT."""
_NAMES = re.compile(r"(?<![\w'])[A-Z]{3,}(?:\s[A-Z]{3,})+(?![\w'])")

_SAYABLE = re.compile(
    r"""
    (?:sch|scr|shr|spl|spr|squ|str|thr|ch?[lr]?|ph[lr]?|qu|rh|s[chklmnptw]|sh|t[hrw]|wh|wr|gh|gn|kn|
       [bfgkp][lr]|d[rw]|[bcdfghjklmnprstvwxyz])?
    [aeiouy]{1,3}
    (?:[bcdfghjklmnpqrstvwxz]{1,3}[aeiouy]{1,3})*
    (?:[lmnr]?(?:[bcdfgkmnpstvxz]|th|sh|ch|ck|hn|ll|ss|ff|zz|st|ct|ft|pt|xt|sk|sp|ng|nk|ght|ngth|tch|ld|lth|w|h|l|r)?s?)
    """,
    re.VERBOSE | re.IGNORECASE,
)
_CAPITALS = re.compile(r"(?<![\w'])([A-Z]{2,})('?s|'S)?(?![\w]|'[a-rt-z])")
_ANY_WORD = re.compile(r"[A-Za-z]{2,}")


def is_sayable(word: str) -> bool:
    """Whether a reader could say the letters as a word: "nasa", and neither "fb" nor "html"."""
    if len(word) < 3:
        return word.upper() in _WORDS
    return len(word) <= 40 and _SAYABLE.fullmatch(word) is not None


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
    capitals = list(filter(str.isupper, found))
    heading = len(capitals) > 1 and 2 * len(capitals) >= len(found) and any(map(_is_word, capitals))
    sentence = _SHOUTED.sub(lambda found: found[0].lower(), sentence)
    sentence = _NAMES.sub(_shouted_name, sentence)
    return _CAPITALS.sub(partial(_read_capitals, heading=heading), sentence)


def _is_word(capitals: str) -> bool:
    if len(capitals) <= 3 or capitals in _BY_LETTER or capitals in _AMBIGUOUS:
        return capitals in _WORDS
    return is_sayable(capitals) or (len(capitals) >= 6 and has_vowel(capitals))


def _read_capitals(found: re.Match[str], *, heading: bool) -> str:
    capitals, ending = found[1], (found[2] or "").lower()
    if ending == "'s" and found[2].isupper() and capitals in _AMBIGUOUS:
        return found[0].lower()
    if said := said_acronym(capitals, ending):
        return said
    in_heading = capitals in _AMBIGUOUS or (len(capitals) > 2 and is_sayable(capitals))
    is_word = _is_word(capitals) or (heading and in_heading)
    return found[0].lower() if is_word else letter_by_letter(capitals, ending)


def _shouted_name(found: re.Match[str]) -> str:
    """JOHN SMITH: where one word of a name can only be a word, those beside it are words, too, but no acronyms."""
    words = found[0].split()
    if not any(len(word) > 3 and _is_word(word) for word in words):
        return found[0]
    return " ".join(
        word.lower() if len(word) > 3 and has_vowel(word) and not said_acronym(word) else word
        for word in words
    )


def _initial(found: re.Match[str]) -> str:
    """A letter with its dot before a name: the letter's name, without the dot, if the dot does not end a sentence."""
    before = re.search(r"([\w.']+)\W*$", found.string[max(0, found.start() - 40) : found.start()])
    word = before[1] if before else ""
    after_comma = len(word) > 1 and before is not None and before[0].endswith(", ")
    follows = re.match(r"\s*[A-Z]\.", found.string[found.end() : found.end() + 40])
    named = word[:1].isupper() and "'" not in word and word not in _LETTERED
    is_initial = not word or named or word in _BEFORE_INITIALS or after_comma
    if not follows and (found[1] == "I" or not is_initial):
        return found[0]
    return f"{letter_by_letter(found[1])} "


def _without_vowels(found: re.Match[str]) -> str:
    return found[0] if _SOUNDS.fullmatch(found[0]) else letter_by_letter(found[0])


LETTERS_SAID_SINGLY = rules(
    {
        # Initials: U.S., J.R.R. Tolkien, George W. Bush.
        r"(?<![\w.'])(?:[A-Za-z]\.){2,20}(?:[A-Za-z](?![\w']))?": lambda found: letter_by_letter(
            found[0].replace(".", "")
        ),
        r"(?<![\w.'])([A-Z])\.(?=\s*[A-Z])": _initial,
        # iPhone, eBay
        r"(?<!\w)([ei])(?=[A-Z])": lambda found: f"{letter_by_letter(found[1])} ",
        # A is an article before a word, and a letter elsewhere.
        r"(?<![\w'])A(?=-[a-z]|[^\w\s'-]|\s*$|\s(?:and|or|to)\s[B-HJ-Z]\b)": "ay",
        r"(?:(?<=\b[Aa]n )|(?<=\b[Tt]he ))A(?![\w'.])": "ay",
        r"(?<![\w'])[B-HJ-Zb-hj-z](?!\w|'(?!s\b)\w)": lambda found: letter_by_letter(found[0]),
        r"(?<![\w'])(?:[b-df-hj-np-tv-xz]{2,5}|[hmszrt]{6,20})(?![\w'])": _without_vowels,
    }
)


_MARKS = TABLES.pairs("marks in addresses")
_DOMAINS = any_of(TABLES.words("top-level domains"))
_WORDY_DOMAINS = any_of(TABLES.words("top-level domains that are words"))
_TOP_DOMAIN = rf"(?:{_DOMAINS}|{_WORDY_DOMAINS}(?=/\w))"
_FILES = any_of(TABLES.words("file extensions"))
# Lengths are bounded, so that a long line without any mark of an address is searched in linear time.
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST = rf"{_LABEL}(?:\.{_LABEL}){{0,8}}"
_TAIL = r"(?::\d{1,5})?(?:[/?#][\w./?=&#%~+:@-]{0,500})?"


def addresses(spelled: bool) -> tuple[Substitution, ...]:
    """Rules for addresses, from the surest form to the least sure."""

    def piece(text: str) -> str:
        if text.isdigit():
            return cardinal(text) if len(text) <= 2 else digit_names(text)  # as in page12
        if not text.isalpha() or not text.isascii():
            return _MARKS.get(text, text)
        return _piece_spelled(text) if spelled else text

    def address(found: re.Match[str]) -> str:
        # A mark at the end is the sentence's, not the address's; a slash there is not said.
        whole = found["address"].rstrip(".,?:-")
        said = map(piece, re.findall(r"[A-Za-z]+|\d+|[^\W_]|[\W_]", whole.rstrip("/")))
        return f" {' '.join(said)} {found['address'][len(whole) :]}"

    return rules(
        {
            r"<(?:mailto:)?([^<>\s]{3,500})>": r" \1 ",
            rf"(?<![\w.+-])(?P<address>[A-Za-z0-9][\w.+-]{{0,63}}@{_HOST})": address,
            rf"(?i)(?<!\w)(?:https?|ftp|file)://+(?P<address>{_HOST}{_TAIL})": address,
            rf"(?i)(?<![\w.-])(?P<address>www\.{_HOST}{_TAIL})": address,
            rf"(?<![\w.@-])(?P<address>{_LABEL}(?:\.{_LABEL}){{0,3}}\.{_TOP_DOMAIN}{_TAIL})(?![\w@]|\.\w)": address,
            rf"(?<![\w.])(?P<address>[\w-]{{0,80}}\.{_FILES})(?![\w@]|\.\w)": address,
            r"(?<![\w.~/])(?P<address>(?:[A-Za-z]:|~)(?:[/\\][\w.-]{1,80}){1,30}|(?:[/\\][\w.-]{1,80}){2,30})": address,
            r"(?<![\w&])(?P<mark>[#@])(?P<words>[A-Za-z]\w{0,80})": _tag,
        }
    )


def _piece_spelled(piece: str) -> str:
    if said := said_acronym(piece.upper()):
        return said
    # Up to three letters may be an abbreviation although they have a vowel.
    is_word = is_sayable(piece) or (len(piece) > 3 and has_vowel(piece))
    return piece.lower() if is_word else letter_by_letter(piece)


def _tag(found: re.Match[str]) -> str:
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+", found["words"])
    return f" {'hashtag' if found['mark'] == '#' else 'at'} {' '.join(words)} "
