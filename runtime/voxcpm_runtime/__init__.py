"""Speak with a bundle: `VoxCPM.from_bundle(path).generate("Hello.")`. numpy, no PyTorch."""

from voxcpm_constants.errors import BundleError, InputError, VoxCPMError
from voxcpm_runtime.options import GenerationOptions
from voxcpm_runtime.voxcpm import Progress, Speech, TooLongWarning, VoxCPM

__all__ = [
    "BundleError",
    "GenerationOptions",
    "InputError",
    "Progress",
    "Speech",
    "TooLongWarning",
    "VoxCPM",
    "VoxCPMError",
]
