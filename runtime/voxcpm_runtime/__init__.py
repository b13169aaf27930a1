"""The runtime: `VoxCPM.from_bundle(path).generate("Hello.")` speaks with numpy, without PyTorch.

Names are imported lazily (PEP 562): importing the package imports neither numpy nor a backend.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from voxcpm_constants.errors import BundleError, InputError, VoxCPMError
    from voxcpm_runtime.options import GenerationOptions
    from voxcpm_runtime.speech.plan import Plan
    from voxcpm_runtime.speech.request import Cancelled, CancelToken
    from voxcpm_runtime.speech.results import Progress, Speech, SuspiciousWarning
    from voxcpm_runtime.speech.session import AudioChunk, Session
    from voxcpm_runtime.voices.store import VoiceStore
    from voxcpm_runtime.voices.voice import Voice
    from voxcpm_runtime.voxcpm import VoxCPM
    from voxcpm_runtime.words.words import Word

__all__ = [
    "AudioChunk",
    "BundleError",
    "CancelToken",
    "Cancelled",
    "GenerationOptions",
    "InputError",
    "Plan",
    "Progress",
    "Session",
    "Speech",
    "SuspiciousWarning",
    "Voice",
    "VoiceStore",
    "VoxCPM",
    "VoxCPMError",
    "Word",
]

# In order of lookup, cheap imports first.
_MODULES = (
    "voxcpm_constants.errors",
    "voxcpm_runtime.options",
    "voxcpm_runtime.words.words",
    "voxcpm_runtime.speech.request",
    "voxcpm_runtime.speech.results",
    "voxcpm_runtime.voices.voice",
    "voxcpm_runtime.voices.store",
    "voxcpm_runtime.speech.plan",
    "voxcpm_runtime.speech.session",
    "voxcpm_runtime.voxcpm",
)


def __getattr__(name: str) -> Any:
    modules = map(importlib.import_module, _MODULES if name in __all__ else ())
    for module in modules:
        if hasattr(module, name):
            return globals().setdefault(name, getattr(module, name))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
