"""Defects, each planted into a process by a function, that the harness must see."""

from __future__ import annotations

import errno
import os
import secrets
import threading
from pathlib import Path
from typing import Any


def files_in_place() -> None:
    """Files are written under their final names, without a rename."""
    from voxcpm_constants.file_locks import Lock
    from voxcpm_runtime.storage import whole_file

    def opened(path: Path) -> Any:
        file = path.open("wb+")
        return path, file, Lock(os.dup(file.fileno()))

    whole_file._opened = opened  # type: ignore[assignment]


def leftovers_stay() -> None:
    """Unfinished files have a new name each time, so that the next run does not find them."""
    from voxcpm_runtime.storage import whole_file

    part = whole_file._part
    whole_file._part = lambda path, _: part(path, secrets.token_hex(4))  # type: ignore[assignment]
    whole_file.remove_leftover = lambda _: None


def refused_files_stay() -> None:
    """What could not be written whole is not removed."""
    unlink = Path.unlink

    def unlinked(self: Path, missing_ok: bool = False) -> None:
        if self.suffix != ".part":
            unlink(self, missing_ok)

    Path.unlink = unlinked  # type: ignore[method-assign]


def refused_for_good() -> None:
    """Where a file could not be made once, none is made again."""
    from voxcpm_runtime.storage import whole_file

    opened = whole_file._opened

    def tried(path: Path) -> Any:
        mark = path.with_name("refused")
        if mark.exists():
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        try:
            return opened(path)
        except OSError:
            mark.touch()
            raise

    whole_file._opened = tried


def refusals_without_a_line() -> None:
    """What the system refuses is not turned into an error of this project's."""
    from voxcpm_runtime.voices import voice

    def shown(error: BaseException) -> str:
        raise RuntimeError from error

    voice.os_reason = shown  # type: ignore[attr-defined]


def segments_forgotten() -> None:
    """What an interrupted run has saved is spoken again."""
    from voxcpm_runtime.speech.saved_segments import SavedSegments

    SavedSegments.get = lambda *_: None  # type: ignore[method-assign]


def cancellations_keep_descriptors() -> None:
    """Each generation that is cancelled leaves a file open."""
    _after_a_cancellation(lambda: os.open(os.devnull, os.O_RDONLY))


def cancellations_keep_threads() -> None:
    """Each generation that is cancelled leaves a thread that waits."""

    def wait() -> None:
        threading.Thread(target=threading.Event().wait, daemon=True).start()

    _after_a_cancellation(wait)


def _after_a_cancellation(act: Any) -> None:
    from voxcpm_runtime.speech.cancellation import CancelToken

    cancel = CancelToken.cancel

    def cancelled(self: CancelToken) -> None:
        cancel(self)
        act()

    CancelToken.cancel = cancelled  # type: ignore[method-assign]


def sessions_differ() -> None:
    """One sample of what a session speaks is another."""
    from voxcpm_runtime.session import threaded_speech

    pcm16 = threaded_speech.pcm16

    def altered(audio: Any) -> Any:
        pcm = pcm16(audio)
        pcm[:1] += 1
        return pcm

    threaded_speech.pcm16 = altered
