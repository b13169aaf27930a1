"""Limits of untrusted input, rejected before it costs memory or time, and of Apple's hardware.

Input limits are far above published checkpoints and usable recordings. The ranges of generation options are in the
runtime's `options`, except for those that others share.
"""

from __future__ import annotations

# Files, in bytes.
MAX_JSON_BYTES = 64 << 20
"""A JSON document: manifest, configuration, tokenizer or record. Published tokenizers have a few megabytes."""
MAX_TEXT_BYTES = 64 << 20  # A text to speak, or a line of a batch: a long novel has 2 MB
MAX_VOICE_BYTES = 256 << 20  # A voice, its prefix, or a saved segment: a minute of latents takes about 100 kB
MAX_RECORDING_BYTES = 256 << 20
"""A recording before decoding: 20 minutes of stereo at 48 kHz have 230 MB as WAV."""

# Recordings.
MAX_RECORDING_SECONDS = 1200.0  # Length of a prompt or reference; the KV cache holds a few minutes
MAX_RECORDING_SAMPLES = 57_600_000
"""Samples of a recording per channel: 1200 s at 48 kHz or 300 s at 192 kHz, 230 MB as float32."""
MAX_CHANNELS = 8  # Channels of a recording
MAX_RATE = 384_000
"""Sample rate in Hz. Resampling from a rate without a common factor takes 20 filter coefficients per Hz."""

# Sessions.
MAX_BUFFER_SECONDS = 3600
"""Unread audio of a session: an hour at 48 kHz takes 346 MB."""

# Texts.
MAX_CHARACTERS = 64 << 20  # Characters of one text
MAX_SENTENCE_CHARACTERS = 4000
"""Characters of one sentence. A longer one, such as a table without a full stop, is split."""
MAX_READ_AT_ONCE = 5000
"""Characters of a text that is checked completely before speech starts; a longer one is read lazily."""

# Configurations.
MAX_LAYERS = 1024  # Layers of one transformer; published checkpoints have at most 28
MAX_POSITIONS = 1 << 20  # Positions of a KV cache, and of rotary embeddings

# Euler steps of a patch.
MAX_EULER_STEPS = 200  # Of any call
MIN_SOLVER_STEPS = 2
"""`locdit_solve` needs two steps: with CFG-zero* the first one has zero velocity."""

# Speech.
MIN_SPEED, MAX_SPEED = 0.25, 4.0  # Speed factors at constant pitch: of an option, a request, and markup

# Limits of packages for Apple's hardware; the rules of `voxcpm-coreml lint` give the sources.
MAX_RANK = 4  # Axes of a tensor: the Neural Engine's compiler rejects programs with more
MAX_AXIS_LENGTH = 16_384
"""Elements along one axis of an activation: the Neural Engine's limit for width, height and depth."""
STATE_MULTIPLE = 32
"""The last two axes of a Core ML state are multiples of this: the Neural Engine failed on a width of 270."""
MASKED_BATCH = 10  # Leading axis from which masked attention is wrong on macOS 26.2's GPU
MAX_WEIGHT_FILE_BYTES = 2_000_000_000
"""Bytes of one package's weights: an M1 loaded VoxCPM2's base LM (2.66 GB in fp16) only when split in two."""
