"""Markup as XML: square brackets become elements, and errors name the place in the text as it was written."""

from __future__ import annotations

import re
from bisect import bisect_right
from xml.sax.saxutils import escape, quoteattr

from voxcpm_constants.errors import InputError

_MARK = re.compile(
    r"(?s)<!--.*?-->|<!\[CDATA\[.*?\]\]>|<[^>]*>|\\(?P<literal>[\[\]])"
    r"|\[(?P<tag>/?[a-z]+)(?:\s+(?P<value>[^\[\]]*[^\[\]\s]))?\s*\]|\[[^\[\]\n]{0,40}\]?"
)
HERE = "from-here"  # The element of a voice or rate in brackets, which applies from there on
_ELEMENTS = {
    "pause": "<break time={}/>",
    "voice": f"<{HERE} voice={{}}/>",
    "/voice": f"<{HERE} voice=''/>",
    "rate": f"<{HERE} rate={{}}/>",
    "/rate": f"<{HERE} rate='1'/>",
    "spell": "<say-as interpret-as='characters'>",
    "/spell": "</say-as>",
}
"""Tags in brackets; {} is their value."""


class MarkupSource:
    """A text as XML: `xml`. A text with a `<` is XML already. Raises InputError for brackets that are not markup."""

    def __init__(self, text: str) -> None:
        self._text = text = text.replace("\r\n", "\n").replace("\r", "\n")
        # Where pieces begin in the XML, and in the text.
        self._starts, self._origins = [0], [0]
        self._spelling: int | None = None  # Where the open [spell] is
        self.xml = ""
        as_xml = str if "<" in text else escape
        is_document = text.lstrip().startswith(("<speak", "<?", "<!"))
        pieces, at = [("" if is_document else "<speak>", 0)], 0
        for match in _MARK.finditer(text):
            pieces += (as_xml(text[at : match.start()]), at), (self._element(match), match.start())
            at = match.end()
        if self._spelling is not None:
            raise self._error(self._spelling, "[spell] needs [/spell] after it")
        pieces += (as_xml(text[at:]), at), ("" if is_document else "</speak>", len(text))
        length = 0
        for piece, origin in pieces:
            self._starts.append(length)
            self._origins.append(origin)
            length += len(piece)
        self.xml = "".join(piece for piece, _ in pieces)

    def _element(self, match: re.Match[str]) -> str:
        if match[0].startswith("<"):
            return match[0]
        if match["literal"]:
            return match["literal"]
        element, value = _ELEMENTS.get(match["tag"] or "", ""), match["value"] or ""
        if not element or ("{}" in element) != bool(value):
            raise self._error(
                match.start(),
                f"expected [pause 0.5s], [voice NAME], [rate 1.2] or [spell]…[/spell], got {match[0]}; "
                r"write \[ for a bracket that is read",
            )
        if match["tag"] == "/spell" and self._spelling is None:
            raise self._error(match.start(), "expected [spell] before [/spell]")
        if match["tag"] != "/spell" and self._spelling is not None:
            raise self._error(match.start(), f"expected text only from [spell] to [/spell], got {match[0]}")
        self._spelling = match.start() if match["tag"] == "spell" else None
        return element.format(quoteattr(value))

    def error(self, line: int, column: int, problem: str) -> InputError:
        """An error located at this line (1-based) and column (0-based) of the XML."""
        at = sum(len(before) + 1 for before in self.xml.split("\n")[: line - 1]) + column
        piece = bisect_right(self._starts, at) - 1
        return self._error(min(self._origins[piece] + at - self._starts[piece], len(self._text)), problem)

    def _error(self, at: int, problem: str) -> InputError:
        line, column = self._text.count("\n", 0, at) + 1, at - self._text.rfind("\n", 0, at)
        return InputError(f"markup, line {line}, column {column}: {problem}", argument="text")
