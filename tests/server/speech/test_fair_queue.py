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


def test_a_request_that_goes_away_leaves_no_turn_taken() -> None:
    async def scenario() -> None:
        queue = FairQueue(1, 10, 10)
        turn = await queue.enter("a")
        waiting = [asyncio.create_task(queue.enter("a")) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.sleep(0)
        assert queue.waiting == 2
        turn.leave()
        # It is called and goes away in the same moment: the next one gets the turn.
        waiting[1].cancel()
        (await asyncio.wait_for(waiting[2], 5)).leave()
        assert (queue.waiting, queue.busy) == (0, 0)

    asyncio.run(scenario())


def test_some_of_a_queue_may_have_fewer_turns_and_take_none_from_others() -> None:
    async def scenario() -> None:
        queue = FairQueue(3, 10, 10)
        narrow = queue.narrowed(1)
        first = await narrow.enter("a")
        waiting = [asyncio.create_task(narrow.enter("a")) for _ in range(3)]
        await asyncio.sleep(0)
        assert not any(task.done() for task in waiting)
        # Who waits for the narrow queue's turn keeps none of the wide one, where others speak at once.
        assert (queue.busy, queue.waiting, narrow.busy) == (1, 3, 1)
        others = [await asyncio.wait_for(queue.enter("b"), 5) for _ in range(2)]
        waiting[0].cancel()
        await asyncio.gather(waiting[0], return_exceptions=True)
        # The next one has its narrow turn and waits for a wide one: going away then frees the narrow one, too.
        others.append(await filled(queue, first))
        await asyncio.sleep(0)
        assert (narrow.busy, queue.busy, queue.waiting) == (1, 3, 2)
        waiting[1].cancel()
        await asyncio.gather(waiting[1], return_exceptions=True)
        for other in others:
            other.leave()
        (await asyncio.wait_for(waiting[2], 5)).leave()
        assert (queue.busy, queue.waiting, narrow.busy) == (0, 0, 0)

    async def filled(queue: FairQueue, turn: Any) -> Any:
        """Another key's wide turn, which takes the place of one that is left."""
        task = asyncio.create_task(queue.enter("c"))
        await asyncio.sleep(0)
        turn.leave()
        return await asyncio.wait_for(task, 5)

    asyncio.run(scenario())


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


def test_too_many_are_refused_and_told_when_to_come_again() -> None:
    async def scenario() -> None:
        queue = FairQueue(1, 3, 2)
        await queue.enter("a")
        tasks = [asyncio.create_task(queue.enter("a")) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(ApiError) as own:
            await queue.enter("a")
        tasks.append(asyncio.create_task(queue.enter("b")))
        await asyncio.sleep(0)
        with pytest.raises(ApiError) as anyones:
            await queue.enter("c")
        assert (own.value.status_code, anyones.value.status_code) == (429, 503)
        # The same without waiting, which costs nothing.
        with pytest.raises(ApiError):
            queue.check("c")
        for error in (own.value, anyones.value):
            assert int((error.headers or {})["Retry-After"]) >= 1
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

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


def test_the_last_line_keeps_no_turn_while_it_waits_for_the_other_one() -> None:
    async def scenario() -> None:
        queue = FairQueue(1, 10, 10)
        narrow = queue.narrowed(1)
        other = await queue.enter("b")
        job = asyncio.create_task(narrow.enter_last())
        await rested()
        assert (narrow.busy, job.done()) == (0, False)
        request = asyncio.create_task(narrow.enter("a"))
        await rested()
        other.leave()
        turn = await asyncio.wait_for(request, 5)
        await rested()
        assert not job.done()
        turn.leave()
        (await asyncio.wait_for(job, 5)).leave()
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


def test_a_job_that_goes_away_leaves_no_turn_taken() -> None:
    async def scenario() -> None:
        queue = FairQueue(1, 10, 10)
        narrow = queue.narrowed(1)
        turn = await narrow.enter("a")
        waiting = [asyncio.create_task(narrow.enter_last()) for _ in range(3)]
        await rested()
        waiting[0].cancel()
        await rested()
        turn.leave()
        # It is called by the loop's next step, and goes away before it notices.
        await asyncio.sleep(0)
        assert narrow.busy == 1
        waiting[1].cancel()
        (await asyncio.wait_for(waiting[2], 5)).leave()
        assert (queue.busy, queue.waiting, narrow.busy) == (0, 0, 0)

    asyncio.run(scenario())


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
