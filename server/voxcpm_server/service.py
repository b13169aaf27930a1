"""What the routes of one app share: the voice that speaks, its queue, its stored voices, its limits."""

from __future__ import annotations

from typing import cast

from starlette.requests import HTTPConnection

from voxcpm_runtime import VoiceStore, VoxCPM
from voxcpm_server.authentication import Keys
from voxcpm_server.errors import ApiError
from voxcpm_server.metrics import Metrics
from voxcpm_server.open_conversations import OpenConversations
from voxcpm_server.queueing import FairQueue
from voxcpm_server.sessions import Sessions
from voxcpm_server.settings import OPENAI_MODELS, Settings
from voxcpm_server.speaking import Speeches
from voxcpm_server.stored_voices import StoredVoices, read_aliases


class Service:
    """The parts of one app, put together from its settings.

    tts: the bundle with its step models. Raises InputError for aliases that cannot be read.
    """

    def __init__(self, tts: VoxCPM, settings: Settings, keys: Keys) -> None:
        self.tts = tts
        self.settings = settings
        several = len(keys) > 1
        per_key = settings.queue_per_key or (max(1, settings.queue // 2) if several else settings.queue)
        self.queue = FairQueue(settings.concurrency, settings.queue, per_key)
        self.metrics = Metrics(self.queue)
        self.speeches = Speeches(tts, settings, self.queue, self.metrics)
        self.sessions = Sessions(settings, self.queue, self.metrics)
        most = settings.max_conversations
        self.conversations = OpenConversations(most, max(1, most // 2) if several else most)
        self.metrics.conversations.set_function(lambda: len(self.conversations))
        self.voices = StoredVoices(VoiceStore(settings.voices_folder), read_aliases(settings.voice_aliases))
        self.draining = False
        """Whether the server ends: it answers what it has begun."""
        own_name = settings.model_name or tts.bundle.architecture.generation
        self.model_names = tuple(dict.fromkeys((own_name, *OPENAI_MODELS)))
        """The names of the bundle, its own first."""

    @property
    def takes_instructions(self) -> bool:
        """Whether the bundle's generation has styles in words."""
        return self.tts.bundle.architecture.traits.takes_reference

    def check_model(self, name: str) -> None:
        """Raises ApiError (404) for a model that is not served."""
        if name not in self.model_names:
            served = ", ".join(self.model_names)
            raise ApiError(
                404, f"model: expected one of {served}, got {name!r}", param="model", code="model_not_found"
            )


def service_of(request: HTTPConnection) -> Service:
    """The service of the app that a request or websocket has come to."""
    return cast("Service", request.app.state.service)
