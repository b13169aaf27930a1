"""Tables, and what the progress line and the summary of speech say."""

from __future__ import annotations

import os
from typing import Any

from voxcpm_runtime.speech.results import Progress, Speech
from voxcpm_runtime.words.words import missed_words


def table_console() -> Any:
    """A console for tables, which have the width that they need without a terminal and `$COLUMNS`."""
    from rich.console import Console

    console = Console(highlight=False, emoji=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = 10_000
    return console


def progress_text(progress: Progress) -> str:
    """The progress of a call, in one line."""
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


def speech_summary(speech: Speech, clipped: int = 0) -> str:
    """Length, speed and seed of finished speech, in one line. clipped: number of clipped samples."""
    return (
        f"{speech.audio_seconds:.2f} s of speech in {speech.elapsed_seconds:.2f} s "
        f"(real-time factor {speech.real_time_factor:.2f}), seed {speech.seed}{clipped_text(clipped)}"
    )


def speech_facts(speech: Speech) -> dict[str, Any]:
    """Finished speech as JSON."""
    return {
        "seed": speech.seed,
        "seconds": round(speech.audio_seconds, 3),
        "samples": len(speech.audio),
        "suspicious": {segment.number: segment.reason for segment in speech.suspicious},
        **missed_words(speech.words, speech.replaced),
    }


def clipped_text(clipped: int) -> str:
    """The end of a summary, if samples were clipped."""
    return f", {clipped} samples clipped" if clipped else ""
