"""The user's voices by name, one file each in a folder, with the built-in voices as a fallback."""

from __future__ import annotations

import functools
import os
import re
from dataclasses import replace
from pathlib import Path

from voxcpm_constants.errors import InputError, system_errors_as
from voxcpm_constants.user_folders import DEFAULT_VOICE, voices_folder
from voxcpm_runtime.argument_types import path_argument, text_argument
from voxcpm_runtime.bundle.opening import Bundle
from voxcpm_runtime.storage.atomic_file import make_folder
from voxcpm_runtime.voices.prefix_cache import prefix_files
from voxcpm_runtime.voices.voice import SUFFIX, Voice, latent_space

BUILT_IN = Path(__file__).with_name("built_in_voices")
"""Recordings of the speakers that the built-in voice's checkpoint was trained with."""
_NAME = re.compile(r"[\w][\w .-]*", re.UNICODE)


@functools.cache
def built_in_voices(space: str = "") -> dict[str, Voice]:
    """The built-in voices by name, sorted; without paths, so that no prefixes are cached in the package.

    space: only those of this `latent_space`; by default all.
    """
    if space:
        return {
            name: voice for name, voice in built_in_voices().items() if voice.header.latent_space == space
        }
    return {path.stem: replace(Voice.load(path), path=None) for path in sorted(BUILT_IN.glob(f"*{SUFFIX}"))}


def default_voice(bundle: Bundle) -> Voice | None:
    """The built-in voice that the checkpoint's `speech.json` names; None if it names none, or one of another AudioVAE.

    Raises InputError for a name that no built-in voice has.
    """
    profile = bundle.manifest.speech
    if profile and profile.voice and profile.voice not in built_in_voices():
        known = ", ".join(built_in_voices())
        raise InputError(
            f"the checkpoint's speech.json names voice {profile.voice!r}: expected one of {known}"
        )
    return built_in_voices(latent_space(bundle.architecture)).get(profile.voice or "") if profile else None


class VoiceStore:
    """The voices in a folder, by name.

    folder: by default the user's (`voxcpm_constants.user_folders`). Raises InputError if that is a file.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        self.folder = voices_folder() if folder is None else path_argument(folder, "folder")

    @system_errors_as(InputError)
    def names(self) -> list[str]:
        """The names of the user's voices, sorted; empty without a folder. Raises InputError if it cannot be read."""
        try:
            # Not glob, which treats an unreadable folder as empty.
            return sorted(path.stem for path in self.folder.iterdir() if path.suffix == SUFFIX)
        except FileNotFoundError:
            return []

    @system_errors_as(InputError)
    def add(self, voice: Voice, *, overwrite: bool = False) -> Voice:
        """Save a voice under its name; returns it with its path.

        Raises InputError for an existing name, unless `overwrite`, and for a name that cannot be a file name.
        """
        path = self.free_path(voice.name, overwrite=overwrite)
        make_folder(self.folder)
        _delete_prefixes(path)
        return voice.save(path, overwrite=overwrite)

    def free_path(self, name: str, *, overwrite: bool = False) -> Path:
        """The path for a new voice of that name. Errors: `add`."""
        path = self.path(name)
        if name == DEFAULT_VOICE:
            raise InputError(f"voice name: {name} is the checkpoint's own voice; choose another name")
        if not overwrite and path.exists():
            raise InputError(f"a voice {name} already exists; choose another name, or use --overwrite")
        return path

    def located(self, name: str) -> Path:
        """The path of a voice's file, from its name or that path. Errors: `path`."""
        return path_argument(name, "name") if _is_path(name) else self.path(name)

    @system_errors_as(InputError)
    def load(self, name: str) -> Voice:
        """The voice of that name or path. A user's voice shadows a built-in one of the same name.

        Raises InputError for an unknown name, listing the voices that exist, and for a damaged file.
        """
        path = self.located(name)
        if name == DEFAULT_VOICE:
            raise InputError(f"{name} is the checkpoint's own voice, which has no file")
        if path.is_file() or _is_path(name):
            return Voice.load(path)
        if name in built_in_voices():
            return built_in_voices()[name]
        present = ", ".join(dict.fromkeys([*self.names(), *built_in_voices()]))
        raise InputError(
            f"no voice {name} (available: {present}); create one with `voxcpm-coreml voices add`"
        )

    @system_errors_as(InputError)
    def remove(self, name: str) -> None:
        """Delete a voice and its saved prefixes. Raises InputError for a voice that does not exist or is built in."""
        path = self.path(name)
        if not path.is_file():
            self.load(name)
            raise InputError(
                f"voice {name} is built in and cannot be removed; add a voice of that name to replace it"
            )
        _delete_prefixes(path)
        path.unlink()

    def path(self, name: str) -> Path:
        """The path of the file for a voice of that name. Raises InputError for a name that cannot be a file name."""
        if not _NAME.fullmatch(text_argument(name, "name")) or name != name.strip():
            raise InputError(f"voice name: expected letters, digits, spaces, dots and dashes, got {name!r}")
        if name.endswith(SUFFIX):
            raise InputError(f"voice name: leave out {SUFFIX}, which is added to {name!r}")
        return self.folder / f"{name}{SUFFIX}"


def _is_path(name: str) -> bool:
    return text_argument(name, "name").endswith(SUFFIX) or os.sep in name


def _delete_prefixes(path: Path) -> None:
    for prefix in prefix_files(path):
        prefix.unlink(missing_ok=True)
