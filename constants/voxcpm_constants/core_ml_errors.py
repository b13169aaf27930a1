"""The reason in an error of coremltools, which prints Core ML's NSError."""

from __future__ import annotations

import re

from voxcpm_constants.errors import first_line

# Parts of a printed NSError.
_STRING = r'"((?:[^"\\]|\\.)*)"'
_DESCRIPTION = re.compile(rf"NSLocalizedDescription = (?:{_STRING}|([^;\n]*));")
_UNDERLYING = re.compile(rf"NSUnderlyingError = {_STRING};")
_CAUSE = re.compile(rf"Code=-?\d+ {_STRING}")
_ESCAPED = re.compile(r"\\(U[0-9a-fA-F]{4}|.)")


def core_ml_reason(error: BaseException) -> str:
    """The description in an error of coremltools, and of the underlying error if there is one, in one line.

    coremltools raises the `userInfo` of Core ML's NSError, printed as a multi-line dictionary.
    """
    text = str(error)
    described = _DESCRIPTION.search(text)
    if described is None and text.startswith("{"):
        return f"Core ML gives no reason: {' '.join(text.split())}"
    if described is None:
        return first_line(error)
    underlying = _UNDERLYING.search(text)
    cause = _CAUSE.search(_unescape(underlying[1])) if underlying else None
    found = [_unescape(described[1] or described[2] or ""), _unescape(cause[1]) if cause else ""]
    lines = [said.strip().splitlines()[0] for said in found if said.strip() not in ("", "(null)")]
    return " ".join(dict.fromkeys(lines)) or "Core ML gives no reason"


def _unescape(text: str) -> str:
    def character(match: re.Match[str]) -> str:
        code = match[1]
        return chr(int(code[1:], 16)) if len(code) > 1 else {"n": "\n", "t": "\t"}.get(code, code)

    return _ESCAPED.sub(character, text)
