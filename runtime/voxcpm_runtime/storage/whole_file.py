"""Files that appear when they are complete."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def whole_file(path: Path, *, keep: bool = True) -> Iterator[BinaryIO]:
    """A file beside `path` that takes its name at the end; it is removed when anything, Ctrl-C too, comes between.

    keep: False only tries whether the file could be written. Raises OSError when it cannot.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.part")
    try:
        with partial.open("wb+") as file:
            yield file
        if keep:
            partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
