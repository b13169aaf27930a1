"""The queue: fairness between keys, limits per key, and background turns of jobs."""

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

from voxcpm_server.errors import ApiError
from voxcpm_server.speech.queueing import FairQueue, Turn


def test_keys_take_turns() -> None:
    async def order() -> list[str]:
        queue, served = FairQueue(1, 10, 10), []
        turn = await queue.enter("a")

        async def request(key: str, name: str) -> None:
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
        return served

    assert asyncio.run(order()) == ["a1", "b1", "c1", "a2", "b2", "a3"]


def test_turn_passes_on_if_the_request_is_cancelled_when_notified() -> None:
    async def scenario() -> int:
        queue = FairQueue(1, 10, 10)
        turn = await queue.enter("a")
        request = asyncio.create_task(queue.enter("b"))
        await asyncio.sleep(0)
        turn.leave()
        request.cancel()
        await asyncio.wait({request})
        return queue.busy

    assert asyncio.run(scenario()) == 0


def test_limits_count_only_requests_that_wait() -> None:
    """With a queue of 0 free turns are granted still, and a request that is cancelled frees its place."""

    async def scenario() -> None:
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

    asyncio.run(scenario())


def test_background_turns_yield_to_requests() -> None:
    async def order() -> list[str]:
        queue, served = FairQueue(1, 10, 10), []
        job = await queue.enter_background()
        assert (queue.busy, queue.has_requests) == (1, False)

        async def one(name: str) -> None:
            own = await (queue.enter_background() if name == "job" else queue.enter("a"))
            served.append(name)
            own.leave()

        tasks = [asyncio.create_task(one(name)) for name in ("job", "first", "second")]
        await asyncio.sleep(0)
        assert queue.has_requests
        job.leave()
        await asyncio.wait_for(asyncio.gather(*tasks), 5)
        assert (queue.busy, queue.waiting) == (0, 0)
        return served

    assert asyncio.run(order()) == ["first", "second", "job"]


@pytest.mark.parametrize("seed", range(3))
def test_random_arrivals_and_cancellations_keep_the_invariants(seed: int) -> None:
    """Requests and jobs, some cancelled, in a random order."""
    rng = random.Random(seed)

    async def scenario() -> None:
        queue = FairQueue(3, 1000, 1000)
        holding = 0
        served: Counter[str] = Counter()

        async def speaks(turn: Turn, kind: str) -> None:
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

        async def one(kind: str) -> None:
            turn = await (queue.enter(rng.choice("ab")) if kind == "request" else queue.enter_background())
            await speaks(turn, kind)

        tasks: list[asyncio.Task[Any]] = []
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

    asyncio.run(scenario())
