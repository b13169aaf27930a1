"""Versions of macOS whose Core ML was reported to crash with models like ours, by public issues on real hardware."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from voxcpm_constants.macos import MacOS


class KnownCrash(NamedTuple):
    """What was reported of some versions of macOS."""

    affects: Callable[[tuple[int, ...]], bool]
    report: str
    source: str


KNOWN_CRASHES = (
    KnownCrash(
        lambda version: version[0] == 14,
        "the CPU path (BNNS) ended the process at every prediction of one fp16 model (14.8.7), and never on 15.7",
        "FluidAudio issue 878",
    ),
    KnownCrash(
        lambda version: version[:2] in ((26, 4), (26, 5)),
        "the CPU path (BNNS) ended the process after minutes or hours, on any compute unit; macOS 26.6 is clean, iOS "
        "from 26.4 on is not",
        "FluidAudio issues 587, 817, 818 and 844",
    ),
)


def known_crash(system: MacOS | None) -> str:
    """What is known of this system, with its source, in a sentence; empty for all others."""
    found = (known for known in KNOWN_CRASHES if system is not None and known.affects(system.version))
    return next((f"{system}: {known.report} ({known.source})" for known in found), "")
