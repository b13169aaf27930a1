"""Streams: a cancelled one releases its turn, and one that nobody reads is not generated further."""

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from voxcpm_server.speech.queueing import FairQueue
from voxcpm_server.speech.speaking import Stream, send_with_timeout
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


@pytest.mark.parametrize("turns", range(4))
def test_cancellation_at_the_end_of_a_send_is_not_lost(turns: int) -> None:
    async def lost() -> bool:
        async def send() -> None:
            await sent

        sent = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(send_with_timeout(send(), 10))
        await asyncio.sleep(0.01)
        sent.set_result(None)
        for _ in range(turns):
            await asyncio.sleep(0)
        cancelled = task.cancel()
        await asyncio.wait({task})
        return cancelled and not task.cancelled()

    assert not asyncio.run(lost())


class _Numbers(Stream[int]):
    made = 0

    def generate(self) -> Iterator[int]:
        for self.made in range(1, 101):
            yield self.made


def test_unread_stream_is_generated_up_to_its_capacity_and_forgotten_once_closed() -> None:
    async def scenario() -> None:
        service: Any = SimpleNamespace(streams=set())
        served: Any = SimpleNamespace(leases=0, release=lambda: None)
        stream = _Numbers(service, served, "", 4)
        stream.start()
        assert await stream.peek() == 1
        while stream.made < 5:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        assert stream.made == 5
        assert [await anext(stream) for _ in range(20)] == [*range(1, 21)]
        assert service.streams == {stream}
        await stream.aclose()
        assert stream.made < 100
        assert not service.streams

    asyncio.run(scenario())
