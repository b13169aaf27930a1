"""Numbers in English words, by the library `inflect`."""

from __future__ import annotations

import functools
from typing import Any


@functools.cache
def inflect_engine() -> Any:
    """The library's engine. Importing it takes two seconds, which only texts with numbers have to pay."""
    import inflect

    return inflect.engine()
