"""Type checks of public arguments, which raise a one-line InputError.

Does not import numpy, so that the command line starts fast.
"""

from __future__ import annotations

import math
import os
import reprlib
from numbers import Integral, Real
from pathlib import Path
from typing import TypeVar

from voxcpm_constants.bounds import MAX_CHARACTERS
from voxcpm_constants.errors import InputError
from voxcpm_constants.user_folders import user_path

Kind = TypeVar("Kind")


def shown(value: object) -> str:
    """The repr of a value for a message, on one line and shortened in the middle."""
    return " ".join(reprlib.repr(value).split())


def wrong_type(value: object, name: str, expected: str) -> InputError:
    """The error of an argument that is not `expected`."""
    return InputError(f"{name} must be {expected}, got {shown(value)}", argument=name)


def instance(value: object, kind: type[Kind], name: str, expected: str) -> Kind:
    """The value, unchanged. Raises InputError if it is not a `kind`. expected: its name, such as "a Voice"."""
    if not isinstance(value, kind):
        raise wrong_type(value, name, expected)
    return value


def text_argument(value: object, name: str) -> str:
    """The value, unchanged. Raises InputError if it is not a str."""
    return instance(value, str, name, "a str")


def switch(value: object, name: str) -> bool:
    """The value as a bool. Raises InputError for anything except True and False, Python's or numpy's."""
    if isinstance(value, bool) or type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    raise wrong_type(value, name, "True or False")


def whole_number(value: object, name: str, minimum: int, unit: str = "") -> int:
    """The value as an int. Raises InputError for anything except a whole number of at least `minimum`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < minimum:
        raise wrong_type(value, name, f"a whole number{f' of {unit}' if unit else ''} from {minimum}")
    return int(value)


def real_number(value: object) -> float:
    """The value if it is a number, otherwise NaN, which fails any range check."""
    # Not `float(value)`: an int may be too large.
    return value if isinstance(value, Real) and not isinstance(value, bool) else math.nan  # type: ignore[return-value]


def path_argument(value: object, name: str) -> Path:
    """The path, with `~` expanded to a user's home folder. Raises InputError if the value is not a path."""
    if not isinstance(value, str | os.PathLike):
        raise wrong_type(value, name, "a path")
    return user_path(value)


def file_argument(value: object, name: str) -> Path:
    """The path of a file. Raises InputError also for a path without a name, such as a root folder."""
    path = path_argument(value, name)
    if not path.name:
        raise wrong_type(value, name, "the path of a file")
    return path


def checked_text(text: object, what: str, argument: str = "text") -> str:
    """The text, unchanged. Raises InputError if it is blank, too long, not a str, or not valid Unicode.

    what: the name of the text in the message. argument: its name among the arguments of `speak`.
    """
    if not isinstance(text, str):
        problem = f"must be a str, got {type(text).__name__}"
    elif len(text) > MAX_CHARACTERS:
        problem = f"has {len(text)} characters; expected at most {MAX_CHARACTERS}: split it"
    elif not text.strip():
        problem = "is empty; expected text to speak"
    else:
        return valid_unicode(text, what, argument)
    raise InputError(f"the {what} {problem}", argument=argument)


def valid_unicode(text: str, what: str, argument: str = "text") -> str:
    """The text, unchanged. Raises InputError for a lone surrogate, which UTF-8 cannot encode."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(f"the {what} is not valid Unicode; expected UTF-8", argument=argument) from None
    return text
