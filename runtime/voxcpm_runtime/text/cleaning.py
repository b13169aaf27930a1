"""Markdown and HTML without their marks: texts of language models and web pages, so that only what is meant is read.

Not a parser: text may arrive sentence by sentence, and what is not Markdown must stay as it is. Each pattern takes
linear time, as a text may have millions of characters.
"""

from __future__ import annotations

import html

from voxcpm_runtime.options import Clean
from voxcpm_runtime.text.substitution import rules, substituted

_TARGET = r"""\([^()\s]*(?:\([^()\s]*\)[^()\s]*)*(?:\s+(?:"[^"\n]*"|'[^'\n]*'))?\)"""
_ATTRIBUTES = r"""(?:\s+[\w:-]+\s*=\s*(?:"[^"<>]*"|'[^'<>]*'|[^\s"'<>=]+))*\s*/?"""
_UNSPACED = r"A-Za-z0-9\\"  # Beside one of these, a single mark may be a product, and after \ it is meant


def _within(mark: str) -> str:
    """What the marks enclose: text of one paragraph that neither begins nor ends with a space."""
    return rf"(?=[^\s{mark}])([^{mark}\n]*(?:\n[^{mark}\n]+)*)(?<=\S)"


_MARKDOWN = rules(
    {
        r"(?ms)^ {0,3}(```|~~~).*?(?:^ {0,3}\1[^\n]*$|\Z)": "",  # a block of code
        r"<!--[^<>]*-->|\[\^[^\[\]\s]+\]:?": "",  # a comment, a footnote
        r"(`+)([^`\n]+)\1(?!`)": r"\2",
        rf"!\[([^\[\]]*)\]{_TARGET}": r"\1",  # an image: what it shows
        rf"\[([^\[\]]+)\]{_TARGET}": r"\1",
        rf"(?i)</?(?:br|hr|p|div|li|tr|h[1-6]){_ATTRIBUTES}>": "\n",
        rf"</?[A-Za-z][\w:-]*{_ATTRIBUTES}>": "",
        r"(?m)^ {0,3}#{1,6}[ \t]+([^\n]*)\n?": r"\1\n\n",
        r"(?m)^[ \t]*([-=*_])[ \t]*(?:\1[ \t]*){2,}$|^(?=[^\n|]*\|)[ \t:|-]+$": "",  # a rule, also of a table
        r"(?m)^ {0,3}(?:>[ \t]?)+": "",
        r"(?m)^([ \t]*)[*+](?=[ \t])": r"\1-",  # an item of a list, which ends the sentence before it
        rf"(?<![{_UNSPACED}*])\*{_within('*')}\*(?![{_UNSPACED}*])": r"\1",
        rf"(?<![\d*\\])(\*\*\*?){_within('*')}\1(?!\*)": r"\2",  # also within a word: Chinese has no spaces
        rf"(?<![\w\\])(_{{1,3}}){_within('_')}\1(?!\w)": r"\2",
        rf"(?<![~\\])~~{_within('~')}~~(?!~)": r"\1",
        rf"(?<![{_UNSPACED}=])=={_within('=')}==(?![{_UNSPACED}=])": r"\1",
        r"\\([!-/:-@\[-`{-~])": r"\1",
        r"&(?:#\d{1,7}|#[xX][\da-fA-F]{1,6}|[A-Za-z][A-Za-z\d]{1,31});": lambda match: html.unescape(
            match[0]
        ),
    }
)


def cleaned(text: str, clean: Clean | None) -> str:
    """The text without the marks of that language: the text of links, images and code, but no blocks of code."""
    return substituted(text, _MARKDOWN) if clean else text
