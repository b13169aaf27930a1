"""A reader of what comes from outside: inputs that it takes, and how they are changed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robustness.mutations import mutated_bytes


@dataclass(frozen=True)
class Reader:
    """What reads an input. Every engine that changes inputs takes it as this."""

    valid: tuple[bytes, ...]
    """Inputs that it takes as they are."""
    read: Callable[[bytes], object]
    """Reads one input. Raises what the reader raises; a word that it returns tells how else the input was refused."""
    changed: Callable[[bytes, random.Random], bytes] = mutated_bytes
    """One of `valid`, changed."""
    structured: Callable[[], Any] | None = None
    """Makes a strategy of hypothesis for inputs (bytes) of the right structure; None where bytes are all there is."""


Maker = Callable[[Path, Path], Reader]
"""Makes a reader from the folder of a bundle with int8 and an empty folder of its own."""
