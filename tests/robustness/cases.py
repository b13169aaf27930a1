"""How many cases `make torture` has. docs/reliability.md names the totals."""

from __future__ import annotations

from robustness.scenarios import LACKING
from voxcpm_constants.step_models import RESIDUAL_LM_STEP

JOBS = "server jobs"
KILLS = {
    "generate": 50,
    "generate, empty cache": 20,
    "batch": 50,
    "voices add": 30,
    "convert": 15,
    "convert --overwrite": 5,
    JOBS: 20,
}
"""Command → how often it is killed."""

EVERY_CALL = ("generate", "generate, empty cache", "batch", "voices add")
"""Commands of which every call to the system fails once."""
ALL_BUT = tuple(f"convert, all but {lacking}" for lacking in LACKING)
"""A conversion of each part; nearly all of a conversion's thousands of calls are theirs."""
BEGUN = f"convert, all but {RESIDUAL_LM_STEP}"
EACH_ROLE = {BEGUN: (), "convert": (BEGUN,), "convert --overwrite": (BEGUN,)}
"""Commands with many calls, of which one of each kind fails in each role of a folder → other commands, whose roles are
left out, but for those of folders that are there before."""
PARTS = {BEGUN: 4, "convert": 2, "convert --overwrite": 2}
"""Commands that take long → the tests that share their faults, so that two workers can."""

EACH_CALL = {
    **dict.fromkeys(ALL_BUT, ()),
    "convert": ALL_BUT,
    "convert --overwrite": ALL_BUT,
}
"""Commands of which every call fails once in `make faults` → other commands, whose roles are left out likewise."""
PARTS_OF_EACH_CALL = 8
"""The tests that share the faults of such a command."""

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
    "tiny": {"bundle": (240, 60)},
    "tiny, macOS 27": {"bundle": (120, 30)},
    "checkpoint": {"safetensors": (80, 0), "pickle": (80, 0), "lora": (40, 0)},
    "server": {"jobs": (50, 0)},
}
"""Scene → what is damaged → cases without and with digests that match."""

INPUTS = 10_000
"""Changed inputs of a reader, which its engines share."""
BY_SEED = 1_000
"""How many of them are changed by seed where hypothesis serves as well."""
