"""The progress of a command on standard error: one line that changes, or without a terminal periodic new lines."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator

LINE_SECONDS = 10.0  # Seconds before the first line, and between lines
Notes = Callable[[str], None]


@contextlib.contextmanager
def status_line(message: str, *, shown: bool = True) -> Iterator[Notes]:
    """Show one line on standard error, which the yielded function updates.

    Without a terminal, print the latest text every LINE_SECONDS, if it has changed.
    """
    if not shown:
        yield lambda _: None
        return
    if sys.stderr.isatty():
        # Slow to import, and a script does not need it.
        from rich.console import Console
        from rich.markup import escape

        # Not `stderr=True`: converters replace sys.stderr while they run.
        with Console(file=sys.stderr).status(escape(message)) as status:
            yield lambda text: status.update(escape(text))
        return
    stream, latest, ended = sys.stderr, [message], threading.Event()

    def write() -> None:
        written = ""
        while not ended.wait(LINE_SECONDS):
            if latest[0] != written:
                written = latest[0]
                # A closed standard error must not stop the work.
                with contextlib.suppress(OSError, ValueError):
                    stream.write(f"{written}\n")
                    stream.flush()

    # A thread, because a single step, such as compiling a model, may take minutes.
    writer = threading.Thread(target=write, name="progress lines", daemon=True)
    writer.start()
    try:
        yield lambda text: latest.__setitem__(0, text)
    finally:
        ended.set()
        writer.join()
