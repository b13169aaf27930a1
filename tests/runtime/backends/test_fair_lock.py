"""A lock that is given in the order in which threads come."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from voxcpm_runtime import CancelToken
from voxcpm_runtime.backends.fair_lock import FairLock
from voxcpm_runtime.speech.cancellation import Cancelled
from waiting import until


def test_a_fair_lock_is_given_in_order():
    lock, order = FairLock(), []

    def take(name: int) -> None:
        with lock.held(lambda: None):
            order.append(name)

    threads = [threading.Thread(target=take, args=(name,)) for name in range(5)]
    with lock.held(lambda: None):
        with lock.held_if_free() as held:
            assert not held
        for number, thread in enumerate(threads, 1):
            thread.start()
            until(lambda number=number: len(lock._line) == number)
    # The thread that has just released it does not get it back before them.
    with lock.held(lambda: None):
        order.append(5)
    for thread in threads:
        thread.join(20)

    assert order == [0, 1, 2, 3, 4, 5]
    with lock.held_if_free() as held:
        assert held


def test_a_thread_that_gives_up_waiting_for_a_lock_leaves_it_to_the_next():
    lock, order = FairLock(), []
    token = CancelToken()

    def take(name: str, token: CancelToken) -> None:
        with lock.held(token.check):
            order.append(name)

    with ThreadPoolExecutor(2) as threads:
        with lock.held(lambda: None):
            given_up = threads.submit(take, "a", token)
            until(lambda: len(lock._line) == 1)
            second = threads.submit(take, "b", CancelToken())
            until(lambda: len(lock._line) == 2)
            token.cancel()
            with pytest.raises(Cancelled):
                given_up.result(20)
        second.result(20)

    assert order == ["b"]


def test_as_many_threads_hold_a_lock_as_it_has_places() -> None:
    lock, inside, most, leave = FairLock(3), [], [], threading.Event()

    def take(name: int) -> None:
        with lock.held():
            inside.append(name)
            most.append(len(inside))
            assert leave.wait(20)
            inside.remove(name)

    with ThreadPoolExecutor(8) as threads:
        taken = [threads.submit(take, name) for name in range(8)]
        until(lambda: len(lock._line) == 5 and len(inside) == 3)
        with lock.held_if_free() as held:
            assert not held
        leave.set()
        for each in taken:
            each.result(20)

    assert max(most) == 3
    with lock.held_if_free() as held:
        assert held
