import random
from collections.abc import Callable
from dataclasses import dataclass

from robustness.mutations import mutated_bytes


@dataclass(frozen=True)
class Reader:
    """A reader of external input and a mutator of its inputs."""

    valid: tuple[bytes, ...]
    """Valid inputs."""
    read: Callable[[bytes], object]
    """Reads one input. Raises what the reader raises; may return a word for another kind of rejection."""
    changed: Callable[[bytes, random.Random], bytes] = mutated_bytes
    """A mutation of one of `valid`."""
