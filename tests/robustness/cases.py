"""How many cases `make torture` has. docs/reliability.md says the same; `test_page.py` compares them."""

from __future__ import annotations

KILLS = {
    "generate": 45,
    "generate, empty cache": 20,
    "batch": 45,
    "voices add": 30,
    "convert": 25,
    "default bundle": 15,
    "server jobs": 20,
}
"""Command → how often it is killed."""

FAULTS = {
    "generate": 60,
    "generate, empty cache": 60,
    "batch": 60,
    "voices add": 48,
    "convert": 24,
    "default bundle": 12,
}
"""Command → how many of its calls to the system fail."""

# With digests that match, a flipped byte of a weight is another weight: only that nothing crashes, hangs or takes
# memory is asked then.
DAMAGE = {
    "built-in voice": {
        "bundle": (430, 130),
        "voice": (130, 100),
        "prefix": (70, 50),
        "lowered": (50, 30),
        "prepared": (40, 20),
        "verified": (50, 0),
        "segments": (90, 60),
        "batch": (50, 0),
    },
    "tiny": {"bundle": (440, 100)},
    "checkpoint": {"safetensors": (80, 0), "pickle": (80, 0)},
}
"""Scene → what is damaged → cases without and with digests that match."""

INPUTS = 10_000
"""Changed inputs of a reader, by each engine that changes its inputs."""
