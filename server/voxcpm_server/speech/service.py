"""State that an app's routes share: bundles, queue, voices, metrics, settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, cast

from starlette.requests import HTTPConnection

from voxcpm_runtime import VoiceStore, VoxCPM
from voxcpm_runtime.text.lexicon import lexicon_entries
from voxcpm_server.middleware.authentication import Keys
from voxcpm_server.middleware.metrics import Metrics
from voxcpm_server.settings import Settings
from voxcpm_server.speech.queueing import FairQueue
from voxcpm_server.speech.served_bundles import Bundles, Source, parse_bytes, parse_seconds
from voxcpm_server.speech.stored_voices import StoredVoices, read_aliases
from voxcpm_server.streams.open_conversations import OpenConversations


class OpenStream(Protocol):
    """Speech that is being generated."""

    async def aclose(self) -> None:
        """Cancel it."""


class Service:
    """The components of an app, built from its settings.

    replicated: whether other replicas serve the same address. Raises InputError for invalid settings.
    """

    def __init__(
        self, default: VoxCPM | Source, settings: Settings, keys: Keys, named: Mapping[str, Source], *, replicated: bool
    ) -> None:  # fmt: skip
        self.settings = settings
        self.needs_key = bool(len(keys))  # whether clients must send one of the server's keys
        self.replicated = replicated
        self._several_keys = len(keys) > 1
        per_key = settings.queue_per_key or self.max_per_key(settings.queue)
        self.queue = FairQueue(settings.concurrency, settings.queue, per_key)
        maximum = settings.max_conversations
        self.conversations = OpenConversations(maximum, self.max_per_key(maximum))
        max_bytes = parse_bytes(settings.max_memory, "--max-memory") if settings.max_memory else None
        idle = parse_seconds(settings.idle_unload, "--idle-unload") if settings.idle_unload else None
        lexicon = lexicon_entries(settings.lexicon)
        self.bundles = Bundles(
            default, settings.model_name, named, max_bytes=max_bytes, idle_seconds=idle, lexicon=lexicon
        )
        self.metrics = Metrics(self.queue, self.conversations, lambda: len(self.bundles.loaded))
        self.streams: set[OpenStream] = set()
        self.voices = StoredVoices(VoiceStore(settings.voices_folder), read_aliases(settings.voice_aliases))
        self.draining = False  # whether the server is shutting down: it finishes the requests in progress

    def max_per_key(self, maximum: int) -> int:
        """One key's share of `maximum`: half of it if there are several keys."""
        return max(1, maximum // 2) if self._several_keys else maximum


def get_service(request: HTTPConnection) -> Service:
    """The service of the app that handles a request or websocket."""
    return cast("Service", request.app.state.service)
