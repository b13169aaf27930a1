"""The largest sizes of what comes from outside: files, recordings, texts, configurations.

A size beyond its bound is refused in one line before memory or time is spent on it. Every bound is far above what a
published checkpoint or a usable recording has. The ranges of generation options are in the runtime's `options`.
"""

from __future__ import annotations

# Files, in bytes.
MAX_JSON_BYTES = 64 << 20
"""A JSON document: manifest, configuration, tokeniser, record. Published tokenisers have a few megabytes."""
MAX_JSON_DEPTH = 64
"""Objects and lists inside each other in a JSON document; the deepest that is read here has about ten."""
MAX_TEXT_BYTES = 64 << 20
"""A text to speak, or the input of a batch: a large novel has 2 MB."""
MAX_VOICE_BYTES = 256 << 20
"""A voice, its prefix, or a saved segment: a minute of latents takes about 100 kB."""
MAX_RECORDING_BYTES = 256 << 20
"""A recording, before it is decoded: 20 minutes of stereo at 48 kHz have 230 MB in a WAV file."""
MAX_NPY_HEADER_BYTES = 512
"""The header of an `.npy` file, which for the arrays of a bundle has 118."""

# Recordings.
MAX_RECORDING_SECONDS = 1200.0
"""Length of a prompt or reference; the KV cache has room for a few minutes."""
MAX_RECORDING_SAMPLES = 57_600_000
"""Samples of a recording in each channel: 1200 s at 48 kHz, five minutes at 192 kHz. They take 230 MB."""
MAX_CHANNELS = 8
"""Channels of a recording."""
MAX_RATE = 384_000
"""Sample rate in Hz. A filter from a rate that shares no factor with the wanted one has 20 coefficients for each Hz."""
MAX_PIPE_SECONDS = 15.0
"""Seconds without a byte after which a pipe is given up."""
MAX_WHOLE_PIPE_SECONDS = 600.0
"""Seconds after which a pipe is given up that has not ended, however much still comes; standard input, too."""

# Sessions.
MAX_BUFFER_SECONDS = 3600
"""Audio of a session that waits to be read: an hour of 48 kHz takes 346 MB, which are taken at once."""

# Texts.
MAX_CHARACTERS = 64 << 20
"""Characters of one text."""
MAX_SENTENCE_CHARACTERS = 4000
"""Characters of one sentence. A longer one, such as a table without a stop, is read in parts."""
MAX_READ_AT_ONCE = 5000
"""Characters of a text that are read and checked before anything is spoken; the rest is read when its turn comes."""

# Tokenisers.
MAX_TOKENIZER_STEPS = 64
"""Steps of a tokenizer.json that rewrite or split a text, those inside each other included; VoxCPM's have four."""
MAX_TOKENIZER_GROWTH = 100
"""How many times as long the steps may make a text; VoxCPM's own may make one character four: ▁ before it, and
lower case for one that has two letters there."""

# Configurations.
MAX_LAYERS = 1024
"""Layers of one transformer; published checkpoints have 28 at most."""
MAX_WIDTH = 1 << 17
"""Width of a layer, a head or a patch; the greatest of a published checkpoint is 8192."""
MAX_VOCABULARY = 1 << 22
"""Entries of a vocabulary; published ones have 73,448."""
MAX_POSITIONS = 1 << 20
"""Positions of a KV cache, and of rotary embeddings."""
MAX_STRIDE = 1 << 12
"""A stride of the AudioVAE; the greatest of a published checkpoint is 8."""
MAX_STRIDES = 16
"""Strides of the AudioVAE's encoder or decoder."""
