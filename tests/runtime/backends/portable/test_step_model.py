import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from voxcpm_runtime.backends.portable import PortableStepModel, step_model
from waiting import until

LENGTH, HEADS, WIDTH = 12, 2, 3


@pytest.fixture
def cache_package(lab):
    """A model that writes `new` rows at `position` of a KV cache and returns the sums of the updated cache."""

    def build(cache, new, position):
        mb = lab.mb
        after = mb.scatter(data=cache, indices=position, updates=new, axis=2, mode="update", name="cache_out")
        return mb.reduce_sum(x=after, axes=[0, 1, 3], name="sums"), after

    inputs = {
        "cache": ("float32", (1, HEADS, LENGTH, WIDTH)),
        "new": ("float32", (1, HEADS, 2, WIDTH)),
        "position": ("int32", (2,)),
    }
    return lab.package(build, inputs)


def cache_inputs(rng, start):
    new = rng.standard_normal((1, HEADS, 2, WIDTH)).astype(np.float32)
    return {"new": new, "position": np.array([start, start + 1], np.int32)}


def test_a_scattered_state_accumulates_in_its_own_buffer(cache_package, rng):
    model = PortableStepModel(cache_package, threads=1, state={"cache": "cache_out"})
    state = model.new_state()
    expected, every = np.zeros((1, HEADS, LENGTH, WIDTH), np.float32), []
    for start in (0, 2, 4, 3):  # the last overwrites
        inputs = cache_inputs(rng, start)
        expected[:, :, start : start + 2] = inputs["new"]
        every.append((model(inputs, state), expected.sum((0, 1, 3))))
        np.testing.assert_array_equal(state.rows(0, LENGTH)["cache"], expected)
    for outputs, sums in every:  # those of a step survive the next
        assert list(outputs) == ["sums"]
        np.testing.assert_allclose(outputs["sums"], sums, rtol=1e-5, atol=1e-6)
    assert state.in_place == {"cache"}  # one buffer only


def test_a_cache_that_is_also_read_before_the_scatter_is_not_overwritten_early(lab, rng):
    def build(cache, new, position):
        after = lab.mb.scatter(
            data=cache, indices=position, updates=new, axis=2, mode="update", name="cache_out"
        )
        return after, lab.mb.reduce_sum(x=lab.mb.sub(x=after, y=cache), axes=[0, 1, 3], name="change")

    inputs = cache_inputs(rng, 4)
    package = lab.package(build, {"cache": np.zeros((1, HEADS, LENGTH, WIDTH), np.float32), **inputs})
    model = PortableStepModel(package, threads=1, state={"cache": "cache_out"})
    state = model.new_state()
    model(inputs, state)
    again = cache_inputs(rng, 4)
    change = model(again, state)["change"]
    expected = np.zeros(LENGTH)
    expected[4:6] = (again["new"] - inputs["new"]).sum((0, 1, 3))
    np.testing.assert_allclose(change, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"new": None}, "needs an input new"),
        ({"new": np.zeros((1, HEADS, 2, WIDTH))}, "new must be float16 or float32, not float64"),
        ({"new": np.zeros((1, HEADS, 1, WIDTH), np.float32)}, r"new must have shape \(1, 2, 2, 3\), not"),
        ({"z": np.zeros(1)}, "has no input z; its inputs are new"),
        ({}, "has a state: pass one"),
    ],
)
def test_wrong_inputs_are_named(cache_package, rng, change, message):
    model = PortableStepModel(cache_package, threads=1, state={"cache": "cache_out"})
    given = {**cache_inputs(rng, 0), **change}
    with pytest.raises(ValueError, match=message):
        model({name: array for name, array in given.items() if array is not None})


def test_concurrent_calls_are_limited(lab, cache_package, monkeypatch, rng):
    """Each call has its own tensors, so memory would grow with the number of threads."""
    places = step_model.FairSemaphore(1)
    monkeypatch.setattr(step_model, "COMPUTE_SLOTS", places)
    added = lab.package(lambda x: lab.mb.add(x=x, y=np.float32(1)), {"x": np.ones(4, np.float32)}, "added")
    plain = PortableStepModel(added)
    stateful = PortableStepModel(cache_package, state={"cache": "cache_out"})
    with ThreadPoolExecutor(2) as threads:
        with places:
            calls = [
                threads.submit(plain, {"x": np.ones(4, np.float32)}),
                threads.submit(stateful, cache_inputs(rng, 0), stateful.new_state()),
            ]
            until(lambda: len(places._waiters) == 2)
        for call in calls:
            assert call.result(20)


def test_waiting_calls_run_in_fifo_order():
    places, order = step_model.FairSemaphore(1), []

    def take(name):
        with places:
            order.append(name)

    threads = [threading.Thread(target=take, args=(name,)) for name in range(5)]
    with places:
        for number, thread in enumerate(threads, 1):
            thread.start()
            until(lambda number=number: len(places._waiters) == number)
    # The releasing thread does not overtake them.
    take(5)
    assert order == [0, 1, 2, 3, 4, 5]
