"""Limits of input from outside: files, recordings, texts, configurations.

Input beyond a limit is rejected in one line before memory or time is spent on it. Every limit is far above the size of
published checkpoints and usable recordings. The ranges of generation options are in the runtime's `options`.
"""

from __future__ import annotations

# Files, in bytes.
MAX_JSON_BYTES = 64 << 20
"""A JSON document: manifest, configuration, tokenizer, record. Published tokenizers have a few megabytes."""
MAX_TEXT_BYTES = 64 << 20
"""A text to speak, or a line of a batch: a long novel has 2 MB."""
MAX_VOICE_BYTES = 256 << 20
"""A voice, its prefix, or a saved segment: a minute of latents takes about 100 kB."""
MAX_RECORDING_BYTES = 256 << 20
"""A recording before decoding: 20 minutes of stereo at 48 kHz have 230 MB as WAV."""
MAX_NPY_HEADER_BYTES = 512
"""The header of an `.npy` file; those of a bundle have 118."""

# Recordings.
MAX_RECORDING_SECONDS = 1200.0
"""Length of a prompt or reference; the KV cache holds a few minutes."""
MAX_RECORDING_SAMPLES = 57_600_000
"""Samples of a recording per channel: 1200 s at 48 kHz, or five minutes at 192 kHz; 230 MB."""
MAX_CHANNELS = 8
"""Channels of a recording."""
MAX_RATE = 384_000
"""Sample rate in Hz. Resampling from a rate without a common factor takes 20 filter coefficients per Hz."""
MAX_PIPE_SECONDS = 15.0
"""Timeout in seconds for the next byte of a pipe."""
MAX_WHOLE_PIPE_SECONDS = 600.0
"""Timeout in seconds for the end of a pipe or of standard input."""

# Sessions.
MAX_BUFFER_SECONDS = 3600
"""Unread audio of a session: an hour at 48 kHz takes 346 MB, which are allocated at once."""

# Texts.
MAX_CHARACTERS = 64 << 20
"""Characters of one text."""
MAX_SENTENCE_CHARACTERS = 4000
"""Characters of one sentence. A longer one, such as a table without a full stop, is split."""
MAX_READ_AT_ONCE = 5000
"""Characters of a text that are read and checked before speech starts; the rest is read while it is spoken."""

# Tokenisers.
MAX_TOKENIZER_STEPS = 64
"""Steps of a tokenizer.json that rewrite or split a text; VoxCPM's have four."""
MAX_TOKENIZER_GROWTH = 100
"""Factor by which the texts of these steps may lengthen a text; for VoxCPM it is 2: ▁ before a character."""

# Configurations.
MAX_LAYERS = 1024
"""Layers of one transformer; published checkpoints have at most 28."""
MAX_WIDTH = 1 << 17
"""Width of a layer, a head or a patch; published checkpoints have at most 8192."""
MAX_VOCABULARY = 1 << 22
"""Entries of a vocabulary; published ones have 73,448."""
MAX_POSITIONS = 1 << 20
"""Positions of a KV cache, and of rotary embeddings."""
MAX_STRIDE = 1 << 12
"""A stride of the AudioVAE; published checkpoints have at most 8."""
MAX_STRIDES = 16
"""Strides of the AudioVAE's encoder or decoder."""

# Euler steps of a patch.
MAX_EULER_STEPS = 200
"""The largest number for any call."""
MIN_SOLVER_STEPS = 2
"""The smallest number for `locdit_solve`, where CFG-zero* gives the first step zero velocity."""
