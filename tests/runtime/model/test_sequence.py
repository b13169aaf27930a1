import itertools

import pytest

from voxcpm_runtime.model.sequence import Chunk, plan_chunks


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (1, [(0, 1, 1)]),
        (2, [(0, 1, 1), (1, 1, 1)]),
        # Three calls of one cost 27, one padded call of 16 costs 24.
        (3, [(0, 3, 16)]),
        (16, [(0, 16, 16)]),
        (17, [(0, 16, 16), (16, 1, 1)]),
        (60, [(0, 60, 64)]),
        (80, [(0, 64, 64), (64, 16, 16)]),
    ],
)
def test_the_cheapest_plan(count, expected):
    assert plan_chunks(count, (1, 16, 64)) == tuple(Chunk(*chunk) for chunk in expected)


def test_padding_must_fit_into_the_cache():
    assert plan_chunks(3, (1, 16), position=84, capacity=100) == (Chunk(0, 3, 16),)
    assert [chunk.size for chunk in plan_chunks(3, (1, 16), position=85, capacity=100)] == [1, 1, 1]
    with pytest.raises(ValueError, match="do not fit 100 positions"):
        plan_chunks(3, (16, 64), position=90, capacity=100)


@pytest.mark.parametrize("sizes", [(1,), (1, 4), (1, 16, 64), (4,)])
def test_every_item_appears_once_and_in_order(sizes):
    for count, position in itertools.product(range(40), (0, 7)):
        capacity = position + count + (3 if 1 not in sizes else 0)
        plan = plan_chunks(count, sizes, position=position, capacity=capacity)
        covered = [item for start, length, _ in plan for item in range(start, start + length)]
        assert covered == list(range(count))
        assert all(chunk.length == chunk.size for chunk in plan[:-1])
        assert all(position + chunk.start + chunk.size <= capacity for chunk in plan)
