"""Limits that packages respect to run on Apple's hardware; the rules of `voxcpm-coreml lint` give their sources."""

from __future__ import annotations

LARGEST_RANK = 4
"""Axes of a tensor: the Neural Engine's compiler refuses programs with more."""

LONGEST_AXIS = 16_384
"""Elements along one axis of an activation: the Neural Engine's limit for its width, its height and its depth."""

STATE_MULTIPLE = 32
"""The last two axes of a Core ML state are multiples of this: the Neural Engine failed on a width of 270."""

MASKED_BATCH = 10
"""Leading axis from which masked attention is wrong on macOS 26.2's GPU."""

LARGEST_WEIGHT_FILE = 2_000_000_000
"""Bytes of one package's weights: an M1 loaded VoxCPM2's base LM (2.66 GB in fp16) only after it was split in two."""
