"""The server's voices by name: stored, built-in, aliases, and the checkpoint's own."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from voxcpm_constants.errors import naming_errors
from voxcpm_constants.json_files import read_json
from voxcpm_constants.user_folders import DEFAULT_VOICE, user_path
from voxcpm_runtime import InputError, Voice, VoiceStore
from voxcpm_server.errors import ApiError
from voxcpm_server.settings import OPENAI_VOICES

_log = logging.getLogger("voxcpm_server")
_MAX_NAME_BYTES = 100
Voices = Mapping[str, Voice]


class StoredVoices:
    """Looks up voices: first configured aliases, then stored voices, built-in ones, and OpenAI's names.

    Built-in voices depend on the bundle, so methods take `VoxCPM.built_in_voices`. aliases: alias → voice, which may be
    `default`. Raises InputError if the store's path is not a folder. Methods raise ApiError: 400 for an invalid name,
    404 for an unknown voice, 409 for a damaged or read-only one, 507 for a disk error.
    """

    def __init__(self, store: VoiceStore, aliases: Mapping[str, str]) -> None:
        nearest = (store.folder, *store.folder.absolute().parents)
        if not (found := next(path for path in nearest if os.path.lexists(path))).is_dir():
            raise InputError(f"{found}: expected a folder for voices; choose another with --voices-folder")
        self._store = store
        self._aliases = dict(aliases)

    def names(self, built_in: Voices) -> list[str]:
        """All names that a request may use, the checkpoint's own voice first."""
        stored, aliases = self._stored_names(), sorted(self._aliases)
        return list(dict.fromkeys([DEFAULT_VOICE, *stored, *built_in, *aliases, *OPENAI_VOICES]))

    def listed(self, built_in: Voices) -> list[dict[str, Any]]:
        """All names, with the kind of each voice, and how a built-in one sounds."""
        stored = set(self._stored_names())
        own = {name: voice for name, voice in built_in.items() if name not in stored}
        return [
            {
                "id": name, "name": name, "stored": name in stored, "built_in": name in own,
                "alias": name in self._aliases,
                "sound": own[name].header.provenance.get("sound") if name in own else None,
            }
            for name in self.names(built_in)
        ]  # fmt: skip

    def named(self, name: str, built_in: Voices) -> Voice | None:
        """The voice for a name or alias; None for the checkpoint's own."""
        # A request without a voice does not wait for the disk.
        if name != DEFAULT_VOICE and name not in (names := self.names(built_in)):
            name = next((known for known in names if known.lower() == name.lower()), name)
        meant = self._aliases.get(name, name)
        if meant == DEFAULT_VOICE:
            return None
        if meant in OPENAI_VOICES and not self._path(meant).is_file():
            return built_in.get(OPENAI_VOICES[meant])
        return self.shown(meant, built_in)

    def finder(self, built_in: Voices) -> Callable[[str], Voice | None]:
        """`named` for markup, which adds the place: raises InputError for an unknown voice."""

        def find(name: str) -> Voice | None:
            try:
                return self.named(name, built_in)
            except ApiError as error:
                raise InputError(error.detail) from None

        return find

    def shown(self, name: str, built_in: Voices) -> Voice:
        """The stored or built-in voice of that name."""
        path = self._path(name)
        if name in built_in and not path.is_file():
            return built_in[name]
        if name == DEFAULT_VOICE or not path.is_file():
            raise _unknown(name)
        try:
            return Voice.load(path)
        except (InputError, OSError) as error:
            # Paths are logged, but not sent to clients.
            _log.error("voice %s: %s", name, error)
            message = f"voice: the file of {name!r} is damaged; delete the voice and create it again"
            raise ApiError(409, message, param="voice", code="voice_damaged") from None

    def check_new(self, name: str, maximum: int) -> None:
        """Raises ApiError (409) for a taken or reserved name, or if `maximum` voices are stored."""
        if name == DEFAULT_VOICE or name in self._aliases:
            raise ApiError(409, f"name: {name} is reserved; choose another", param="name")
        if self._path(name, "name").exists():
            message = f"name: the voice {name} already exists; delete it or choose another name"
            raise ApiError(409, message, param="name")
        if len(self._stored_names()) >= maximum:
            raise ApiError(409, f"too many voices: {maximum} are stored; delete one first")

    def add(self, voice: Voice, maximum: int) -> Voice:
        """Store a new voice; returns it with its path. Raises the same as `check_new`."""
        self.check_new(voice.name, maximum)
        with _disk():
            return self._store.add(voice)

    def remove(self, name: str, built_in: Voices) -> None:
        """Delete a stored voice, even a damaged one, or one under the reserved name."""
        if not self._path(name).is_file():
            if name in built_in:
                raise ApiError(409, f"voice: {name} is built in and cannot be deleted", param="voice")
            raise _unknown(name)
        with _disk():
            self._store.remove(name)

    def _stored_names(self) -> list[str]:
        with _disk():
            return [name for name in self._store.names() if name != DEFAULT_VOICE]

    def _path(self, name: str, field: str = "voice") -> Path:
        """The file of a voice. field: the request field with its name."""
        if len(name.encode("utf-8", "replace")) > _MAX_NAME_BYTES:
            raise ApiError(400, f"{field}: expected at most {_MAX_NAME_BYTES} bytes", param=field)
        try:
            return self._store.path(name)
        except InputError as error:
            raise ApiError(400, str(error), param=field) from None


def _unknown(name: str) -> ApiError:
    message = f"voice: unknown voice {name!r}; GET /v1/audio/voices lists all"
    return ApiError(404, message, param="voice")


@contextmanager
def _disk() -> Iterator[None]:
    """Turn disk errors into 507. Paths are logged, but not sent to clients."""
    try:
        yield
    except (InputError, OSError) as error:
        _log.error("voices: %s", error)
        raise ApiError(507, "the server cannot use its voices folder; see its log") from None


def read_aliases(path: Path | None) -> dict[str, str]:
    """Read aliases from a JSON file. Raises InputError if it is not an object of strings."""
    if path is None:
        return {}
    file, document = user_path(path), None
    with naming_errors(f"{path}: cannot read the aliases"), suppress(ValueError):
        document = read_json(file)
    if not isinstance(document, dict) or not all(isinstance(meant, str) for meant in document.values()):
        raise InputError(f'{path}: expected a JSON object from alias to voice, such as {{"alloy": "ada"}}')
    if DEFAULT_VOICE in document:
        raise InputError(f"{path}: {DEFAULT_VOICE} is the checkpoint's own voice; choose another alias")
    return document
