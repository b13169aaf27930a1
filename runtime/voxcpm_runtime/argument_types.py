"""Arguments of the public calls: the checks of their types, which raise InputError with one line.

numpy is not imported here, so that the command line starts fast.
"""

from __future__ import annotations

import math
import os
import reprlib
from collections.abc import Callable
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeVar

from voxcpm_constants.errors import InputError
from voxcpm_constants.user_folders import user_path

Kind = TypeVar("Kind")
# Python writes no whole number of more than 4300 digits as text, as digests and messages have it.
_GREATEST = 10**1000


def shown(value: object) -> str:
    """A value in a message: on one line, shortened in the middle."""
    try:
        return " ".join(reprlib.repr(value).split())
    except ValueError:
        # Python does not write it as text.
        return "a whole number of more than 4300 digits"


def instance(value: object, kind: type[Kind], name: str, expected: str) -> Kind:
    """The value, unchanged. Raises InputError for what is no `kind`. expected: the words for it, such as "a Voice"."""
    if not isinstance(value, kind):
        raise wrong_type(value, name, expected)
    return value


def wrong_type(value: object, name: str, expected: str) -> InputError:
    """The error of an argument that is something else than `expected`."""
    return InputError(f"{name} must be {expected}, got {shown(value)}", argument=name)


def text_argument(value: object, name: str) -> str:
    """The value, unchanged. Raises InputError for what is no str."""
    return instance(value, str, name, "a str")


def switch(value: object, name: str) -> bool:
    """The value as a bool. Raises InputError for anything except True and False, Python's or numpy's."""
    if isinstance(value, bool) or type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    raise wrong_type(value, name, "True or False")


def function(value: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The value. Raises InputError for what cannot be called."""
    if callable(value):
        return value
    raise wrong_type(value, name, "a function")


def whole_number(value: object, name: str, minimum: int, unit: str = "") -> int:
    """The value as an int. Raises InputError for anything except a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not minimum <= int(value) < _GREATEST:
        raise wrong_type(value, name, f"a whole number{f' of {unit}' if unit else ''} from {minimum}")
    return int(value)


def real_number(value: object) -> float:
    """The value as a float; NaN, which no range contains, for what is no number, and infinity beyond all floats."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf  # type: ignore[operator]


def path_argument(value: object, name: str) -> Path:
    """The path, with a user's home folder for its `~`. Raises InputError for what is no path."""
    if not isinstance(value, str | os.PathLike):
        raise wrong_type(value, name, "a path")
    return user_path(value)


def file_argument(value: object, name: str) -> Path:
    """The path of a file, which has a name. Errors: `path_argument`."""
    path = path_argument(value, name)
    if not path.name:
        raise wrong_type(value, name, "the path of a file")
    return path
