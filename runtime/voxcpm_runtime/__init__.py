"""Speak with a bundle: `VoxCPM.from_bundle(path).generate("Hello.")`. numpy, no PyTorch."""

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
