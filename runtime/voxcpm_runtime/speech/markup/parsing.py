"""Marked-up text in parts. XML is parsed by defusedxml: no document type, no entities of its own, nothing external."""

from __future__ import annotations

import contextlib
import datetime as dt
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any
from xml.sax import SAXParseException
from xml.sax.handler import ContentHandler

from defusedxml.common import DefusedXmlException
from defusedxml.sax import make_parser

from voxcpm_constants.bounds import MAX_SPEED, MIN_SPEED
from voxcpm_constants.errors import InputError
from voxcpm_constants.user_folders import DEFAULT_VOICE
from voxcpm_runtime.speech.markup.source import HERE, MarkupSource
from voxcpm_runtime.text.normalization import normalized
from voxcpm_runtime.text.segments import has_words
from voxcpm_runtime.voices.store import VoiceStore
from voxcpm_runtime.voices.voice import Voice

FindVoice = Callable[[str], Voice | None]

_MAX_PAUSE = 60.0
_LANGUAGE = {"xml:lang"}
_ATTRIBUTES = {
    "speak": {"version", *_LANGUAGE}, "p": _LANGUAGE, "s": _LANGUAGE, "voice": {"name", *_LANGUAGE},
    "prosody": {"rate"}, "break": {"time", "strength"}, "sub": {"alias"}, "say-as": {"interpret-as", "format"},
    HERE: {"voice", "rate"},
}  # fmt: skip
"""The attributes of each element. A namespace may be declared anywhere."""
_REQUIRED = {"voice": "name", "prosody": "rate", "sub": "alias", "say-as": "interpret-as"}
# Microsoft's, as SSML names these without numbers.
_STRENGTHS = {"none": 0, "x-weak": 0.25, "weak": 0.5, "medium": 0.75, "strong": 1, "x-strong": 1.25}
_RATES = {"x-slow": 0.5, "slow": 0.75, "medium": 1, "default": 1, "fast": 1.5, "x-fast": 2}
_SYMBOLS = {
    "-": "dash",
    ".": "dot",
    "_": "underscore",
    "/": "slash",
    "@": "at",
    "+": "plus",
    "#": "hash",
    "*": "star",
}
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_ORDERS = {"mdy": (2, 0, 1), "dmy": (2, 1, 0), "ymd": (0, 1, 2)}
_CLOSERS = " \t\n,.!?…。！？，、:;)]}”’»"
_STOPS = ".!?…。！？:;,"


@dataclass(frozen=True)
class Part:
    """A part of a text: what is spoken without a pause by markup, in one voice at one rate."""

    pieces: list[tuple[str, str]]  # What is written, and what is said for it
    voice: Voice | None = None  # None for the voice of the call
    rate: float = 1.0  # How many times faster than the call's `speed`
    pause: float | None = None  # Seconds of silence before it; None if markup has no pause there
    after: float = 0.0  # Seconds of silence after it, at the end of the text

    @cached_property
    def said(self) -> str:
        """The text as it is said."""
        return "".join(said for _, said in self.pieces)

    def written(self, start: int, end: int) -> str:
        """What is written for these characters of `said`."""
        found, at = "", 0
        for written, said in self.pieces:
            first, last = max(start - at, 0), min(end - at, len(said))
            if first < last:
                found += written[first:last] if written == said else written * (first == 0)
            at += len(said)
        return found


def stored_voice(name: str) -> Voice | None:
    """A stored or built-in voice; None for the voice of the call. Raises InputError for an unknown name, and a path."""
    if name == DEFAULT_VOICE:
        return None
    VoiceStore().path(name)
    return VoiceStore().load(name)


def spoken_parts(
    text: str, paragraph_pause: float, find_voice: FindVoice = stored_voice, speed: float = 1.0
) -> tuple[Part, ...]:
    """The parts of a marked-up text. paragraph_pause: seconds between <p>. find_voice: the voice of a name.

    speed: the call's, which rates multiply.

    Raises InputError, with line and column, for invalid markup, and if no text is left.
    """
    source = MarkupSource(text)
    parser = make_parser()
    parser.forbid_dtd = True
    handler = _Handler(parser, paragraph_pause, find_voice, speed)
    parser.setContentHandler(handler)
    try:
        parser.feed(source.xml)
        parser.close()
    except SAXParseException as error:
        problem = f"{error.getMessage()}; XML needs each tag closed, and &lt; and &amp; for < and &"
        raise source.error(error.getLineNumber() or 1, error.getColumnNumber() or 0, problem) from None
    except DefusedXmlException:
        raise source.error(1, 0, "expected no document type and no entities") from None
    except _Wrong as error:
        raise source.error(*handler.place, str(error)) from None
    return handler.parts()


class _Wrong(Exception):
    pass


@dataclass(frozen=True)
class _Scope:
    voice: Voice | None = None
    rate: float = 1.0  # Of the elements around
    here: float = 1.0  # Of brackets


class _Handler(ContentHandler):
    def __init__(self, parser: Any, paragraph_pause: float, find_voice: FindVoice, speed: float) -> None:
        super().__init__()
        self._parser, self._speed = parser, speed
        self._paragraph_pause, self._find_voice = paragraph_pause, find_voice
        self._scopes = [_Scope()]
        self._parts: list[Part] = []
        self._lead: list[tuple[str, str]] = []  # Marks before the first word
        self._pause, self._is_paragraph = 0.0, False
        self._replaced: list[str] | None = None  # Text within <sub> or <say-as>
        self._say: Callable[[str], str] = str
        self.place = (1, 0)  # Line and column of the last tag

    def parts(self) -> tuple[Part, ...]:
        if not self._parts:
            raise InputError("the markup contains no text; expected words to speak", argument="text")
        return (*self._parts[:-1], replace(self._parts[-1], after=self._pause))

    def startElement(self, name: str, attrs: Any) -> None:  # noqa: N802 - SAX
        self.place = self._parser.getLineNumber(), self._parser.getColumnNumber()
        given = {key: value for key, value in attrs.items() if not key.startswith(("xmlns", "xsi:"))}
        self._check(name, given)
        scope = self._scopes[-1]
        if name == "break":
            strength = _choice(given.get("strength", "medium"), _STRENGTHS, "strength")
            self._pause += _seconds(given["time"]) if "time" in given else strength
        elif name == "sub":
            self._replaced, self._say = [], lambda _: given["alias"]
        elif name == "say-as":
            self._replaced, self._say = [], _reader(given["interpret-as"], given.get("format"))
        elif name == "p":
            self._is_paragraph = bool(self._parts)
        if "name" in given or "voice" in given:
            scope = replace(scope, voice=self._voice(given.get("name", given.get("voice", ""))))
        if name == "prosody":
            scope = replace(scope, rate=scope.rate * scope.here * _rate(given["rate"]), here=1.0)
        elif "rate" in given:
            scope = replace(scope, here=_rate(given["rate"]))
        rate = scope.rate * scope.here
        if not MIN_SPEED <= rate * self._speed <= MAX_SPEED:
            times = f"a rate of {rate:g} times the call's speed of {self._speed:g}"
            raise _Wrong(f"expected a speed from {MIN_SPEED} to {MAX_SPEED:g} in all, got {times}")
        if name == HERE:
            self._scopes[-1] = scope
        self._scopes.append(scope)

    def endElement(self, name: str) -> None:  # noqa: N802 - SAX
        self._scopes.pop()
        if self._replaced is not None and name in ("sub", "say-as"):
            written, self._replaced = "".join(self._replaced).strip(), None
            self._add(written, self._say(written))
        elif name == "p":
            self._is_paragraph = bool(self._parts)
        elif name == "s" and self._parts:
            last = next(said.rstrip() for _, said in reversed(self._parts[-1].pieces) if said.strip())
            self._add(" ", " " if last[-1] in _STOPS else ". ")

    def characters(self, content: str) -> None:
        if self._replaced is not None:
            self._replaced.append(content)
        else:
            self._add(content, content)

    def _check(self, name: str, given: dict[str, str]) -> None:
        if name not in _ATTRIBUTES or (name == "speak") != (len(self._scopes) == 1):
            expected = ", ".join(f"<{known}>" for known in _ATTRIBUTES if known != HERE)
            raise _Wrong(f"expected one of {expected} (speak around all others), got <{name}>")
        if self._replaced is not None:
            raise _Wrong(f"expected text only within <sub>, <say-as> and [spell], got <{name}>")
        if unknown := given.keys() - _ATTRIBUTES[name]:
            known = ", ".join(sorted(_ATTRIBUTES[name])) or "none"
            raise _Wrong(f"unknown attribute {min(unknown)} of <{name}>; expected {known}")
        if (needed := _REQUIRED.get(name)) and not given.get(needed, "").strip():
            raise _Wrong(f"<{name}> needs {needed}")

    def _voice(self, name: str) -> Voice | None:
        try:
            return self._find_voice(name) if name else None
        except InputError as error:
            raise _Wrong(str(error)) from None

    def _add(self, written: str, said: str) -> None:
        """Append text to the part that is being read, or begin another one with it."""
        scope, last = self._scopes[-1], self._parts[-1] if self._parts else None
        rate, piece = scope.rate * scope.here, (written, said)
        is_same = last is not None and last.voice == scope.voice and last.rate == rate
        breaks = self._pause or self._is_paragraph
        if last is not None and (not has_words(said) or (is_same and not breaks)):
            before = last.pieces[-1]
            if before[0] == before[1] and written == said:
                piece = last.pieces.pop()[0] + written, before[1] + said
            last.pieces.append(piece)
        elif not has_words(said):
            self._lead.append(piece)
        else:
            pause = self._pause or (self._paragraph_pause if self._is_paragraph else None)
            if last is not None and written == said:
                # As in <voice …>Yes</voice>, she said.
                written = said = said.lstrip(_CLOSERS)
                last.pieces.append((piece[0][: -len(said)],) * 2)
            piece = (written.lstrip(), said.lstrip())
            self._parts.append(Part([*self._lead, piece], scope.voice, rate, pause))
            self._pause, self._is_paragraph, self._lead = 0.0, False, []


def _choice(value: str, table: dict[str, float], what: str) -> float:
    if value not in table:
        raise _Wrong(f"{what}: expected one of {', '.join(table)}, got {value!r}")
    return table[value]


def _seconds(value: str) -> float:
    found = re.fullmatch(r"\+?(\d{0,6}\.?\d{1,6})(m?)s", value.strip())
    seconds = float(found[1]) / (1000 if found[2] else 1) if found else _MAX_PAUSE + 1
    if seconds > _MAX_PAUSE:
        raise _Wrong(f"expected a pause such as 0.5s or 500ms, of at most {_MAX_PAUSE:g} s, got {value!r}")
    return seconds


def _rate(value: str) -> float:
    """The factor of 1.2, 120%, +20% or a name."""
    value = value.strip()
    if found := re.fullmatch(r"([+-]?)(\d{0,4}\.?\d{1,6})(%?)", value):
        sign, factor = found[1], float(found[2]) / (100 if found[3] else 1)
        if not sign or found[3]:
            factor = factor if not sign else 1 + factor * (1 if sign == "+" else -1)
            if MIN_SPEED <= factor <= MAX_SPEED:
                return factor
        raise _Wrong(
            f"expected a rate from {MIN_SPEED} to {MAX_SPEED:g}, such as 1.2, 120% or +20%, got {value!r}"
        )
    return _choice(value, _RATES, "rate")


def _reader(kind: str, form: str | None) -> Callable[[str], str]:
    """What says a text as the attributes of <say-as> ask. Raises _Wrong for values that are not known."""
    if kind not in _KINDS:
        raise _Wrong(f"interpret-as: expected one of {', '.join(_KINDS)}, got {kind!r}")
    if form is not None and (kind != "date" or form not in _ORDERS):
        raise _Wrong(f"format: expected {', '.join(_ORDERS)}, of a date, got {form!r}")
    pattern, say = _KINDS[kind]

    def read(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise _Wrong(f"expected text that can be read as {kind}, got {text!r}")
        return say(text, form)

    return read


def _characters(text: str, _: str | None) -> str:
    return ", ".join(_SYMBOLS.get(char, char.upper()) for char in text if not char.isspace())


def _cardinal(text: str, _: str | None) -> str:
    whole, dot, rest = text.replace(",", "").partition(".")
    return normalized(f"{int(whole):,}{dot}{rest}")


def _ordinal(text: str, _: str | None) -> str:
    number = int(re.sub(r"\D", "", text))
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th") if number // 10 % 10 != 1 else "th"
    return normalized(f"{number:,}{ending}")


def _telephone(text: str, _: str | None) -> str:
    groups = re.findall(r"\d+", text)
    return ("plus " if text.startswith("+") else "") + ", ".join(
        normalized(" ".join(group)) for group in groups
    )


def _date(text: str, form: str | None) -> str:
    """The text, or without a format also words such as "May 6". Raises _Wrong for a date that does not exist."""
    found = re.fullmatch(r"(\d+)[\s./-]+(\d+)[\s./-]+(\d+)", text)
    if found is None and form is None:
        patterns = (r"\d{4}", rf"\b(?:{'|'.join(_MONTHS)})", r"(?<!\d)\d\d?(?!\d)")
        of_year, of_month, of_day = (re.search(pattern, text.lower()) for pattern in patterns)
        number = _MONTHS.index(of_month[0]) + 1 if of_month else 1
        if not of_month or not of_day or _exists(of_year[0] if of_year else "2000", number, of_day[0]):
            return normalized(text)
    for name, order in _ORDERS.items():
        year, month, day = (found[at + 1] if found else "" for at in order)
        if form in (None, name) and _exists(year, month, day):
            return normalized(text if form is None else f"{month}/{day}/{year}")
    raise _Wrong(f"expected a date that exists, in numbers as {form or ', '.join(_ORDERS)}, got {text!r}")


def _exists(year: str, month: str | int, day: str) -> bool:
    with contextlib.suppress(ValueError, OverflowError):
        dt.date(int(year) + (2000 if len(year) == 2 else 0), int(month), int(day))
        return len(year) in (2, 4)
    return False


_KINDS: dict[str, tuple[str, Callable[[str, str | None], str]]] = {
    "characters": (r"(?s).*\w.*", _characters),
    "cardinal": (r"-?\d[\d,]{0,20}(?:\.\d{1,20})?", _cardinal),
    "ordinal": (r"\d[\d,]{0,20}(?:st|nd|rd|th)?", _ordinal),
    "date": (r"(?=.*\d)[\w\s./,'-]{1,40}", _date),
    "telephone": (r"\+?(?=.*\d)[\d\s().\-–/]{1,40}", _telephone),
}
