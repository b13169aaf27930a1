"""The queue: fairness between keys, limits per key, background turns of jobs; and the streams that take turns."""

import asyncio
import random
from collections import Counter
from types import SimpleNamespace

import pytest

from voxcpm_server.errors import ApiError
from voxcpm_server.speech.queueing import FairQueue
from voxcpm_server.speech.speaking import Stream, send_with_timeout
from voxcpm_server.streams.sessions import SessionStream

pytestmark = pytest.mark.anyio


async def test_keys_take_turns():
    queue, served = FairQueue(1, 10, 10), []
    turn = await queue.enter("a")

    async def request(key, name):
        own = await queue.enter(key)
        served.append(name)
        own.leave()

    asked = [("a", "a1"), ("a", "a2"), ("a", "a3"), ("b", "b1"), ("c", "c1"), ("b", "b2")]
    tasks = [asyncio.create_task(request(*one)) for one in asked]
    await asyncio.sleep(0)
    assert queue.waiting == 6
    turn.leave()
    turn.leave()
    await asyncio.gather(*tasks)
    assert (queue.waiting, queue.busy) == (0, 0)
    assert served == ["a1", "b1", "c1", "a2", "b2", "a3"]


async def test_limits_count_only_requests_that_wait():
    """With a queue of 0 free turns are granted still, and a request that is cancelled frees its place."""
    none = FairQueue(1, 0, 1)
    none.leave(1e6)  # the mean of the durations is long, but clients do not wait for hours
    taken = [await none.enter("a") for _ in range(2)]
    with pytest.raises(ApiError) as refused:
        none.check("a")
    assert refused.value.headers == {"Retry-After": "300"}
    taken[0].leave()
    none.check("a")
    queue = FairQueue(1, 1, 1)
    await queue.enter("a")
    request = asyncio.create_task(queue.enter("a"))
    await asyncio.sleep(0)
    with pytest.raises(ApiError):
        queue.check("b")
    request.cancel()
    await asyncio.wait({request})
    queue.check("b")


@pytest.mark.parametrize("seed", range(3))
async def test_random_arrivals_and_cancellations_keep_the_invariants(seed):
    """Requests and jobs, some cancelled, in a random order."""
    rng = random.Random(seed)

    queue = FairQueue(3, 1000, 1000)
    holding = 0
    served = Counter()

    async def speaks(turn, kind):
        nonlocal holding
        holding += 1
        assert holding <= 3
        try:
            for _ in range(rng.randrange(5)):
                await asyncio.sleep(0)
                if kind == "job" and queue.has_requests:
                    break
        finally:
            holding -= 1
            turn.leave()
        served[kind] += 1

    async def one(kind):
        turn = await (queue.enter(rng.choice("ab")) if kind == "request" else queue.enter_background())
        await speaks(turn, kind)

    tasks = []
    for _ in range(200):
        tasks.append(asyncio.create_task(one(rng.choice(("request", "request", "job")))))
        if rng.random() < 0.2:
            rng.choice(tasks).cancel()
        for _ in range(rng.randrange(4)):
            await asyncio.sleep(0)
    ended = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 20)
    assert {type(each) for each in ended} <= {type(None), asyncio.CancelledError}
    assert served.total() == sum(each is None for each in ended)
    assert min(served["request"], served["job"]) > 10
    assert (queue.busy, queue.waiting) == (0, 0)


@pytest.mark.parametrize("turns", range(4))
async def test_cancellation_at_the_end_of_a_send_is_not_lost(turns):
    async def send():
        await sent

    sent = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(send_with_timeout(send(), 10))
    await asyncio.sleep(0.01)
    sent.set_result(None)
    for _ in range(turns):
        await asyncio.sleep(0)
    cancelled = task.cancel()
    await asyncio.wait({task})
    assert not (cancelled and not task.cancelled())


class _Numbers(Stream[int]):
    made = 0

    def generate(self):
        for self.made in range(1, 101):
            yield self.made


async def test_unread_stream_is_generated_up_to_its_capacity_and_forgotten_once_closed():
    service = SimpleNamespace(streams=set())
    served = SimpleNamespace(leases=0, release=lambda: None)
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


async def test_turn_acquired_after_cancellation_is_released():
    """The session's thread may see the cancellation and leave before the event loop enters."""
    queue = FairQueue(1, 1, 1)
    service = SimpleNamespace(queue=queue, streams=set())
    served = SimpleNamespace(leases=0)
    encoder = None
    stream = SessionStream(service, served, "", encoder, 0, encoder)
    stream.cancel.cancel()
    stream.leave()
    await stream.enter()
    assert queue.busy == 0
