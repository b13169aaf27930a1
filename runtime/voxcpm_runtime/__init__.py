"""Speak with a bundle: `VoxCPM.from_bundle(path).generate("Hello.")`. numpy, no PyTorch."""

from voxcpm_constants.errors import BundleError, InputError, VoxCPMError
from voxcpm_runtime.cancellation import Cancelled, CancelToken
from voxcpm_runtime.options import GenerationOptions
from voxcpm_runtime.progress import Progress
from voxcpm_runtime.session import AudioChunk, Session
from voxcpm_runtime.speech import Speech, TooLongWarning
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
