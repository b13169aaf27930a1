"""Files that appear only when they are complete."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def whole_file(path: Path, *, keep: bool = True) -> Iterator[BinaryIO]:
    """Open a temporary file beside `path`, renamed to `path` at the end; any error, or Ctrl-C, removes it.

    keep: False always removes it, to test whether `path` can be written. Raises OSError if it cannot.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.part")
    try:
        with partial.open("wb+") as file:
            yield file
        if keep:
            partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
