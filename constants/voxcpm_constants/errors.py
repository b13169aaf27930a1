"""Errors that a user can cause and fix; all derive from `VoxCPMError`.

Each message is one line: what was expected, what was found, what to do. The command line prints it and exits with
`exit_code`; users of the library catch `VoxCPMError`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError


class VoxCPMError(Exception):
    """Base class of the errors whose cause is the input and not the program."""

    exit_code = 2


class CheckpointError(VoxCPMError):
    """A checkpoint that cannot be read, or is not a VoxCPM of a known generation."""


class BundleError(VoxCPMError):
    """A bundle that is absent, incomplete, altered, or of a newer schema."""


class InputError(VoxCPMError):
    """A text, audio file, option or output path that generation cannot use."""


class DeviceError(VoxCPMError):
    """A device that this machine does not have, or cannot use, or whose memory is not enough."""


class MissingExtraError(VoxCPMError):
    """A command needs an extra of this package that is not installed."""


def first_line(error: BaseException) -> str:
    """The first line of another library's error, or its class name if it has no message."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def first_wrong_field(error: ValidationError) -> str:
    """The first field of a JSON document that is not as declared, with its dotted name, and what is wrong with it."""
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"])) or "the file"
    return f"{where}: {first['msg']}"


def os_reason(error: OSError) -> str:
    """Why the system refused, such as "Permission denied"."""
    return error.strerror or first_line(error)
