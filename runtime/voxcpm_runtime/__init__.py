"""Speak with a bundle: `VoxCPM.from_bundle(path).generate("Hello.")`. numpy, no PyTorch.

Names are imported when they are first used (PEP 562): importing the package alone imports neither numpy nor a
backend.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from voxcpm_constants.errors import BundleError, InputError, VoxCPMError
    from voxcpm_runtime.options import GenerationOptions
    from voxcpm_runtime.session.session import AudioChunk, Session
    from voxcpm_runtime.speech.cancellation import Cancelled, CancelToken
    from voxcpm_runtime.speech.progress import Progress
    from voxcpm_runtime.speech.results import Speech, TooLongWarning
    from voxcpm_runtime.voices.voice import Voice
    from voxcpm_runtime.voxcpm import VoxCPM

__all__ = [
    "AudioChunk",
    "BundleError",
    "CancelToken",
    "Cancelled",
    "GenerationOptions",
    "InputError",
    "Progress",
    "Session",
    "Speech",
    "TooLongWarning",
    "Voice",
    "VoxCPM",
    "VoxCPMError",
]

_HOMES = {
    "AudioChunk": "voxcpm_runtime.session.session",
    "BundleError": "voxcpm_constants.errors",
    "CancelToken": "voxcpm_runtime.speech.cancellation",
    "Cancelled": "voxcpm_runtime.speech.cancellation",
    "GenerationOptions": "voxcpm_runtime.options",
    "InputError": "voxcpm_constants.errors",
    "Progress": "voxcpm_runtime.speech.progress",
    "Session": "voxcpm_runtime.session.session",
    "Speech": "voxcpm_runtime.speech.results",
    "TooLongWarning": "voxcpm_runtime.speech.results",
    "Voice": "voxcpm_runtime.voices.voice",
    "VoxCPM": "voxcpm_runtime.voxcpm",
    "VoxCPMError": "voxcpm_constants.errors",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
