"""A cancelled stream releases its turn of the queue."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from voxcpm_server.speech.queueing import FairQueue
from voxcpm_server.streams.sessions import SessionStream


def test_turn_acquired_after_cancellation_is_released() -> None:
    """The session's thread may see the cancellation and leave before the event loop enters."""

    async def entered() -> int:
        queue = FairQueue(1, 1, 1)
        service: Any = SimpleNamespace(queue=queue, streams=set())
        served: Any = SimpleNamespace(leases=0)
        encoder: Any = None
        stream = SessionStream(service, served, "", encoder, 0, encoder)
        stream.cancel.cancel()
        stream.leave()
        await stream.enter()
        return queue.busy

    assert asyncio.run(entered()) == 0
