from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from robustness.mutations import mutated_bytes


@dataclass(frozen=True)
class Reader:
    """What reads an input that comes from outside, and how its inputs are changed."""

    valid: tuple[bytes, ...]
    """Inputs that it takes as they are."""
    read: Callable[[bytes], object]
    """Reads one input. Raises what the reader raises; a word that it returns says how else the input was refused."""
    changed: Callable[[bytes, random.Random], bytes] = mutated_bytes
    """One of `valid`, changed."""
