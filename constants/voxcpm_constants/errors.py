"""Errors that users can cause and fix, which derive from `VoxCPMError`, and warnings, from `VoxCPMWarning`.

Each message is one line: what was expected, what was found, what to do. The command line prints it and exits with
`exit_code`; users of the library catch `VoxCPMError`.
"""

from __future__ import annotations

import errno
import inspect
import os
import re
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from pydantic import ValidationError


_MAX_START, _MAX_END = 400, 150  # Characters of a message that is too long; its end says what to do


def shortened(message: str) -> str:
    """A message without its middle if it is very long, as it may quote what was passed, whatever its length."""
    if len(message) <= _MAX_START + _MAX_END:
        return message
    return f"{message[:_MAX_START]} … {message[-_MAX_END:]}"


class VoxCPMError(Exception):
    """Base class of errors caused by the input."""

    exit_code = 2

    def __init__(self, message: str = "") -> None:
        super().__init__(shortened(message))


class VoxCPMWarning(UserWarning):
    """Base class of this project's warnings; the command line shows no others."""


def warn(message: str | VoxCPMWarning, category: type[VoxCPMWarning] = VoxCPMWarning) -> None:
    """Warn at the line that called this project, however deep the warning arose."""
    level, frame = 1, inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith(("voxcpm_", "contextlib")):
        level, frame = level + 1, frame.f_back
    warnings.warn(shortened(message) if isinstance(message, str) else message, category, stacklevel=level)


class CheckpointError(VoxCPMError):
    """A checkpoint that cannot be read, or is not a VoxCPM of a known generation."""


class BundleError(VoxCPMError):
    """A bundle that is missing, incomplete, altered, or of a newer schema."""


class InputError(VoxCPMError, ValueError):
    """A text, audio file, option or output path that cannot be used; also a ValueError, which upstream raises.

    argument: name of the wrong argument of `VoxCPM.speak`, for programs; None if unknown.
    """

    def __init__(self, message: str = "", *, argument: str | None = None) -> None:
        super().__init__(message)
        self.argument = argument


_Choice = TypeVar("_Choice", bound=str)


def one_of(option: str, given: str, choices: Iterable[_Choice]) -> _Choice:
    """The choice with this name, whatever its case. Raises InputError, with all choices."""
    known = {choice.lower(): choice for choice in choices}
    if given.lower() not in known:
        raise InputError(f"{option} {given or repr(given)}: expected one of {', '.join(known)}")
    return known[given.lower()]


class MissingExtraError(VoxCPMError):
    """A command needs an extra of this package that is not installed."""


_WITH_TORCH = ("convert", "convert-coreai", "validate", "listen")


def install_command(extra: str) -> str:
    """The shell command that installs an extra of this package, on Linux without the gigabytes of CUDA."""
    cpu = " --extra-index-url https://download.pytorch.org/whl/cpu" if sys.platform == "linux" else ""
    return f'pip install "voxcpm-coreml[{extra}]"{cpu if extra in _WITH_TORCH else ""}'


SYSTEM_ERRORS = (OSError, RecursionError, MemoryError)
"""Errors of the operating system and limits of the interpreter, shown as one line on the command line."""


def system_reason(error: BaseException) -> str:
    """A one-line message for one of SYSTEM_ERRORS, with the path if there is one."""
    if isinstance(error, MemoryError):
        return "not enough memory" + (f" ({first_line(error)})" if str(error).strip() else "")
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if not isinstance(error, OSError):
        return first_line(error)
    # shutil.Error carries a list of (source, destination, reason).
    if error.args and isinstance(error.args[0], list):
        _, destination, reason = error.args[0][0]
        return f"{destination}: {str(reason).strip()}"
    path = error.filename2 or error.filename
    named = f"{os.fsdecode(path)}: " if isinstance(path, str | bytes | os.PathLike) else ""
    return f"{named}{os_reason(error)}"


@contextmanager
def system_errors_as(kind: type[VoxCPMError]) -> Iterator[None]:
    """A context manager or decorator that turns SYSTEM_ERRORS into a one-line `kind`; other errors propagate."""
    try:
        yield
    except SYSTEM_ERRORS as error:
        raise kind(system_reason(error)) from error


@contextmanager
def naming_errors(what: str) -> Iterator[None]:
    """Turn an OSError, and text that is not UTF-8, into an InputError: "what (reason)"."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{what} ({os_reason(error)})") from None
    except UnicodeDecodeError:
        raise InputError(f"{what} (expected UTF-8 text)") from None


def is_out_of_memory(error: Exception) -> bool:
    """Whether a library could not be loaded, or failed, for lack of memory, by the loader's or PyTorch's message.

    Python itself loses a MemoryError that it has no memory for: "error return without exception set".
    """
    known = "failed to map segment|[Cc]an(no|')t allocate memory|bad_alloc|without (setting an )?exception"
    one_dnn = "could not create a (primitive|memory)"  # PyTorch's convolutions
    return re.search(f"{known}|{one_dnn}", str(error)) is not None


_SHORTAGES = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN}


def is_shortage(error: BaseException | None) -> bool:
    """Whether memory, descriptors or threads ran out, so that what could not be read need not be damaged."""
    while error is not None:
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in _SHORTAGES):
            return True
        error = error.__cause__ or error.__context__
    return False


def first_line(error: BaseException) -> str:
    """The first line of another library's error, or its class name if it has no message."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def first_wrong_field(error: ValidationError) -> str:
    """The dotted name of the first wrong field of a JSON document, and what is wrong with it."""
    first = error.errors()[0]
    # A key may contain any characters, even newlines.
    keys = (key if (key := str(part)).isprintable() else ascii(key) for part in first["loc"])
    where = ".".join(keys) or "the file"
    return f"{where}: {first['msg']}"


def os_reason(error: OSError) -> str:
    """The reason of an OSError, such as "Permission denied"."""
    return error.strerror or first_line(error)
