"""Markdown and HTML without their marks: texts of language models and web pages, so that only what is meant is read.

Not a parser: text may arrive sentence by sentence, and what is not Markdown must stay as it is. Each pattern takes
linear time, as a text may have millions of characters.
"""

from __future__ import annotations

import html
import re

from voxcpm_runtime.options import Clean
from voxcpm_runtime.text.substitution import rules, substituted
from voxcpm_runtime.text.tokenizer import CHINESE

_TARGET = r"""\([^()\s]*(?:\([^()\s]*\)[^()\s]*)*(?:\s+(?:"[^"\n]*"|'[^'\n]*'))?\)"""
_ATTRIBUTES = r"""(?:\s+[\w:-]+\s*=\s*(?:"[^"<>]*"|'[^'<>]*'|[^\s"'<>=]+))*\s*/?"""
_UNSPACED = r"A-Za-z0-9\\"  # Beside one of these, a single mark may be a product, and after \ it is meant
_FENCE = r"^ {0,3}(`{3,}|~{3,})[^`\n]*$"
_WITHIN = r"(?=[^\s{0}])([^{0}\n]*(?:\n[^{0}\n]+)*)(?<=\S)"
"""What marks enclose: text of one paragraph that neither begins nor ends with a space."""

_MARKDOWN = rules(
    {
        rf"(?ms){_FENCE}.*?(?:^ {{0,3}}\1[^\n]*$|\Z)": "",  # a block of code
        r"<!--[^<>]*-->|\[\^[^\[\]\s]+\]:?": "",  # a comment, a footnote
        r"(?<!`)(`{1,9})(?!`)([^`\n]+)\1(?!`)": r"\2",
        rf"!\[([^\[\]]*)\]{_TARGET}": r"\1",  # an image: what it shows
        rf"\[([^\[\]]+)\]{_TARGET}": r"\1",
        rf"(?i)</?(?:br|hr|p|div|li|tr|h[1-6]){_ATTRIBUTES}>": "\n",
        rf"</?[A-Za-z][\w:-]*{_ATTRIBUTES}>": "",
        r"(?m)^ {0,3}#{1,6}[ \t]+([^\n]*)\n?": r"\1\n\n",
        r"(?m)^([^\n|]*\|[^\n]*)\n(?=[^\n|]*\|)[ \t:|-]+$((?:\n[^\n|]*\|[^\n]*)*)": lambda match: _rows(
            match[1] + match[2]
        ),
        r"(?m)^[ \t]*\|[^\n]*\|[ \t]*$": lambda match: _rows(match[0]),  # of a table that is cut
        r"(?m)^[ \t]*([-=*_])[ \t]*(?:\1[ \t]*){2,}$": "",  # a rule
        r"(?m)^ {0,3}(?:>[ \t]?)+": "",
        r"(?m)^([ \t]*)[*+](?=[ \t])": r"\1-",  # an item of a list, which ends the sentence before it
        rf"(?<![{_UNSPACED}*])\*{_WITHIN.format('*')}\*(?![{_UNSPACED}*])": r"\1",
        rf"(?<![\d*\\])(\*\*\*?){_WITHIN.format('*')}\1(?!\*)": r"\2",  # also within a word: Chinese has no spaces
        rf"(?<![\w\\])(_{{1,3}}){_WITHIN.format('_')}\1(?!\w)": r"\2",
        rf"(?<![~\\])~~{_WITHIN.format('~')}~~(?!~)": r"\1",
        rf"(?<![{_UNSPACED}=])=={_WITHIN.format('=')}==(?![{_UNSPACED}=])": r"\1",
        r"\\([!-/:-@\[-`{-~])": r"\1",
        r"&(?:#\d{1,7}|#[xX][\da-fA-F]{1,6}|[A-Za-z][A-Za-z\d]{1,31});": lambda match: html.unescape(
            match[0]
        ),
    }
)


def _rows(table: str) -> str:
    """The rows of a table, each a sentence of its cells."""
    comma, stop = ("，", "。") if CHINESE.search(table) else (", ", ".")
    rows = [[*filter(None, map(str.strip, re.split(r"(?<!\\)\|", line)))] for line in table.split("\n")]
    # Of a row of rules, nothing is said.
    spoken = [comma.join(row) for row in rows if re.search(r"[^\W_]", "".join(row))]
    return "\n".join(row if row[-1] in ".!?。！？" else row + stop for row in spoken)


class Cleaner:
    """Reads a text without the marks of that language: the text of links, images and code, but no blocks of code.

    The text may come in sentences, over which a block of code goes on.
    """

    def __init__(self, clean: Clean | None) -> None:
        self._clean = clean
        self._fence = ""  # That of an unfinished block of code

    def __call__(self, text: str) -> str:
        """The next sentence, or the whole text."""
        if not self._clean:
            return text
        whole = f"{self._fence}\n{text}" if self._fence else text
        self._fence = ""
        for mark in re.findall(f"(?m){_FENCE}", whole):
            self._fence = "" if mark == self._fence else self._fence or mark
        return substituted(whole, _MARKDOWN)
