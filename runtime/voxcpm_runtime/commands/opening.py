"""From a command's arguments to an open voice, with a line on standard error while that or the speech takes time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from voxcpm_runtime.commands.arguments import Engine
    from voxcpm_runtime.speech.progress import Progress
    from voxcpm_runtime.voxcpm import VoxCPM

    Notes = Callable[[str], None]


def located(bundle: str | None, precision: str | None, *, shown: bool) -> Path:
    """The bundle's folder; the default one is converted when it is first used. Raises BundleError and InputError."""
    from voxcpm_runtime.bundle.opening import locate_bundle

    with status_line(
        "the small voice that comes along (converted when first used) …", shown=shown and bundle is None
    ):
        return locate_bundle(bundle, precision)


def opened(folder: Path, engine: Engine) -> VoxCPM:
    """The voice of a bundle. Raises BundleError and InputError."""
    from voxcpm_runtime.voxcpm import VoxCPM

    return VoxCPM.from_bundle(folder, **asdict(engine))


@contextlib.contextmanager
def status_line(message: str, *, shown: bool = True) -> Iterator[Notes]:
    """One line on standard error that the function given changes; nothing where that is no terminal."""
    if not shown:
        yield lambda _: None
        return
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True).status(escape(message)) as status:
        yield lambda text: status.update(escape(text))


def progress_text(progress: Progress) -> str:
    """How far a speech is."""
    parts = [
        f"{progress.patches} patches",
        f"{progress.audio_seconds:.1f} s of speech",
        f"real-time factor {progress.real_time_factor:.2f}",
    ]
    if progress.attempt > 1:
        parts[0] = f"attempt {progress.attempt}: {parts[0]}"
    if progress.segments > 1:
        parts[0] = f"segment {progress.segment + 1} of {progress.segments}"
    if progress.remaining_seconds is not None:
        minutes, seconds = divmod(round(progress.remaining_seconds), 60)
        parts.append(f"{minutes}:{seconds:02d} left")
    return ", ".join(parts)
