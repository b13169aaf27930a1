"""A pipeline of two stages: order, errors, and how far ahead the first stage runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from voxcpm_runtime.speech.one_ahead import one_ahead


def test_the_items_come_in_order() -> None:
    assert list(one_ahead(iter(range(20)))) == list(range(20))
    assert list(one_ahead(iter([]))) == []


def test_the_next_item_is_made_while_the_caller_works_and_no_more() -> None:
    made = [threading.Event() for _ in range(4)]

    def items() -> Iterator[int]:
        for i, event in enumerate(made):
            event.set()
            yield i

    ahead = one_ahead(items())
    assert next(ahead) == 0
    assert made[1].wait(timeout=10)
    assert not made[2].wait(timeout=0.2)
    ahead.close()
    assert not made[2].is_set()


def test_an_error_comes_in_its_items_place() -> None:
    def items() -> Iterator[int]:
        yield 0
        raise RuntimeError("no second item")

    ahead = one_ahead(items())
    assert next(ahead) == 0
    with pytest.raises(RuntimeError, match="no second item"):
        next(ahead)


def test_a_caller_that_takes_nothing_holds_no_thread_and_goes_on_later() -> None:
    before = threading.active_count()
    ahead = one_ahead(iter(range(5)))
    assert next(ahead) == 0
    deadline = time.monotonic() + 10
    while threading.active_count() > before:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert list(ahead) == [1, 2, 3, 4]


def test_closing_early_ends_the_thread() -> None:
    before = threading.active_count()
    ahead = one_ahead(iter(range(5)))
    next(ahead)
    ahead.close()
    assert threading.active_count() == before
