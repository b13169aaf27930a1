"""The queue itself: turns that are fair between keys, narrower ones within them, and the last line, where jobs wait."""

from __future__ import annotations

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


def test_the_bounds_count_who_waits_for_either_queue() -> None:
    async def scenario() -> None:
        queue = FairQueue(2, 3, 2)
        narrow = queue.narrowed(1)
        turns = [await narrow.enter("a"), await queue.enter("b")]
        tasks = [asyncio.create_task(one.enter("a")) for one in (narrow, queue)]
        await asyncio.sleep(0)
        for one in (narrow, queue):
            with pytest.raises(ApiError) as own:
                one.check("a")
            assert own.value.status_code == 429
        tasks.append(asyncio.create_task(narrow.enter("b")))
        await asyncio.sleep(0)
        for one in (narrow, queue):
            with pytest.raises(ApiError) as anyones:
                one.check("c")
            assert anyones.value.status_code == 503
        for turn in turns:
            turn.leave()
        for task in asyncio.as_completed(tasks, timeout=5):
            (await task).leave()
        assert (queue.busy, queue.waiting, narrow.busy) == (0, 0, 0)

    asyncio.run(scenario())


async def rested() -> None:
    """Let everything happen that is due."""
    for _ in range(10):
        await asyncio.sleep(0)


def test_the_last_line_has_both_turns_of_a_narrow_queue_and_is_wanted_by_who_waits_for_either() -> None:
    async def scenario() -> None:
        queue = FairQueue(2, 10, 10)
        narrow = queue.narrowed(1)
        job = await narrow.enter_last()
        assert (queue.busy, narrow.busy, job.is_wanted) == (1, 1, False)
        request = asyncio.create_task(narrow.enter("a"))
        await rested()
        assert (job.is_wanted, request.done()) == (True, False)
        job.leave()
        turn = await asyncio.wait_for(request, 5)
        turn.leave()

        job = await narrow.enter_last()
        others = [asyncio.create_task(queue.enter("b")) for _ in range(2)]
        await rested()
        assert job.is_wanted
        job.leave()
        for other in others:
            (await asyncio.wait_for(other, 5)).leave()
        assert (queue.busy, queue.waiting, narrow.busy) == (0, 0, 0)

    asyncio.run(scenario())


def test_a_request_that_waits_for_a_narrow_turn_goes_before_the_last_line() -> None:
    """The wide turn is left in the moment in which the request is called to the narrow one, before it waits for it."""

    async def order() -> list[str]:
        queue, served = FairQueue(1, 10, 10), []
        narrow = queue.narrowed(1)
        turn = await narrow.enter("a")

        async def request(name: str) -> None:
            own = await narrow.enter("a")
            served.append(name)
            own.leave()

        async def job() -> None:
            own = await queue.enter_last()
            served.append("job")
            own.leave()

        tasks = [asyncio.create_task(one) for one in (job(), request("first"), request("second"))]
        await rested()
        turn.leave()
        await asyncio.wait_for(asyncio.gather(*tasks), 5)
        assert (queue.busy, queue.waiting, narrow.busy) == (0, 0, 0)
        return served

    assert asyncio.run(order()) == ["first", "second", "job"]


@pytest.mark.parametrize("seed", range(20))
def test_whoever_comes_and_goes_nobody_is_forgotten_and_no_queue_is_exceeded(seed: int) -> None:
    """Requests and jobs of a wide and a narrow queue, some of which go away, in a random order."""
    rng = random.Random(seed)

    async def scenario() -> None:
        queue = FairQueue(3, 1000, 1000)
        narrow = queue.narrowed(2)
        holding: Counter[FairQueue] = Counter()
        served: Counter[str] = Counter()

        async def speaks(asked: FairQueue, turn: Turn, kind: str) -> None:
            holding[asked] += 1
            assert holding.total() <= 3
            assert holding[narrow] <= 2
            try:
                for _ in range(rng.randrange(5)):
                    await asyncio.sleep(0)
                    if kind == "job" and turn.is_wanted:
                        break
            finally:
                holding[asked] -= 1
                turn.leave()
            served[kind] += 1

        async def one(kind: str) -> None:
            asked = rng.choice((queue, narrow))
            turn = await (asked.enter(rng.choice("ab")) if kind == "request" else asked.enter_last())
            await speaks(asked, turn, kind)

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
        assert (queue.busy, queue.waiting, narrow.busy) == (0, 0, 0)

    asyncio.run(scenario())
