"""The voices of a server by name: those stored as the runtime's files, aliases, and the checkpoint's own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from voxcpm_constants.errors import os_reason
from voxcpm_runtime import InputError, Voice, VoiceStore
from voxcpm_server.errors import ApiError
from voxcpm_server.settings import DEFAULT_VOICE, OPENAI_VOICES

_MOST_NAME_BYTES = 100


class StoredVoices:
    """Voices by name. An alias of the configuration comes first, then a stored voice, then OpenAI's names.

    aliases: names and the voices they mean, `default` among them.
    """

    def __init__(self, store: VoiceStore, aliases: Mapping[str, str]) -> None:
        self.store = store
        self._aliases = dict(aliases)

    def names(self) -> list[str]:
        """Every name that a request may use, the checkpoint's own voice first."""
        return list(
            dict.fromkeys([DEFAULT_VOICE, *self.store.names(), *sorted(self._aliases), *OPENAI_VOICES])
        )

    def named(self, name: str) -> Voice | None:
        """The voice of a name or alias; None for the checkpoint's own. Raises ApiError (404) for an unknown one."""
        meant = self._aliases.get(name, name)
        if meant == DEFAULT_VOICE:
            return None
        if meant in OPENAI_VOICES and not self._path(meant, "voice").is_file():
            return None
        return self.stored(meant)

    def stored(self, name: str) -> Voice:
        """The stored voice of that name. Raises ApiError: 404 for an unknown one, 400 for what cannot be a name."""
        path = self._path(name, "voice")
        if not path.is_file():
            raise ApiError(
                404, f"voice: there is no voice {name!r}; GET /v1/audio/voices lists them", param="voice"
            )
        return Voice.load(path)

    def check_new(self, name: str, most: int) -> None:
        """Raises ApiError for a name that is taken, reserved or cannot be a file's, and if `most` voices are stored."""
        if name == DEFAULT_VOICE or name in self._aliases:
            raise ApiError(409, f"name: {name} is reserved; choose another", param="name")
        if self._path(name, "name").exists():
            raise ApiError(
                409, f"name: there is a voice {name} already; delete it or choose another", param="name"
            )
        if len(self.store.names()) >= most:
            raise ApiError(409, f"{most} voices are stored, the most that may be; delete one first")

    def remove(self, name: str) -> None:
        """Delete a stored voice. Raises ApiError (404) for an unknown one."""
        self.stored(name)
        self.store.remove(name)

    def _path(self, name: str, field: str) -> Path:
        """The file of a voice. field: where the name stands in the request."""
        if len(name.encode("utf-8", "replace")) > _MOST_NAME_BYTES:
            raise ApiError(400, f"{field}: expected at most {_MOST_NAME_BYTES} bytes", param=field)
        try:
            return self.store.path(name)
        except InputError as error:
            raise ApiError(400, str(error), param=field) from None


def read_aliases(path: Path | None) -> dict[str, str]:
    """The aliases of a JSON file. Raises InputError for anything but an object of names."""
    if path is None:
        return {}
    try:
        document = json.loads(path.expanduser().read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: the aliases cannot be read ({os_reason(error)})") from None
    except ValueError:
        document = None
    if not isinstance(document, dict) or not all(isinstance(meant, str) for meant in document.values()):
        raise InputError(f'{path}: expected a JSON object of voices by name, such as {{"alloy": "ada"}}')
    return document
