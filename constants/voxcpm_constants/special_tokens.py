"""Ids of the tokens that delimit audio in VoxCPM's sequence (upstream `model/voxcpm.py`, `model/voxcpm2.py`)."""

AUDIO_START = 101
AUDIO_END = 102
REFERENCE_START = 103
REFERENCE_END = 104
