"""One line on standard error while a command works."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

from voxcpm_runtime.speech.progress import Progress

Notes = Callable[[str], None]


@contextlib.contextmanager
def status_line(message: str, *, shown: bool = True) -> Iterator[Notes]:
    """Show a line on standard error, which the yielded function changes; nothing if that is no terminal."""
    if not shown or not sys.stderr.isatty():
        yield lambda _: None
        return
    # Takes time to import, which a command in a script need not wait for.
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True).status(escape(message)) as status:
        yield lambda text: status.update(escape(text))


def progress_text(progress: Progress) -> str:
    """The progress of a speech, on one line."""
    parts = [
        f"{progress.patches} patches",
        f"{progress.audio_seconds:.1f} s of speech",
        f"real-time factor {progress.real_time_factor:.2f}",
    ]
    if progress.attempt > 1:
        parts[0] = f"attempt {progress.attempt}: {parts[0]}"
    if progress.segments is None:
        parts[0] = f"segment {progress.segment + 1}"
    elif progress.segments > 1:
        parts[0] = f"segment {progress.segment + 1} of {progress.segments}"
    if progress.remaining_seconds is not None:
        minutes, seconds = divmod(round(progress.remaining_seconds), 60)
        parts.append(f"{minutes}:{seconds:02d} left")
    return ", ".join(parts)
