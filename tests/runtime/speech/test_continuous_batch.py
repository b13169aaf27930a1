"""A batch that is joined and left while it speaks: slots are free at once, and nobody waits for a slow reader."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from voxcpm_constants.errors import InputError
from voxcpm_runtime.model.flow_matching import time_embedding, time_span
from voxcpm_runtime.speech.cancellation import Cancelled, CancelToken
from waiting import until

LONG = {"text": "hello there.", "min_len": 20, "max_len": 20, "retry_badcase": False}
SHORT = {"text": "who?", "seed": 2, "min_len": 6, "max_len": 6, "retry_badcase": False}
SICK_STEPS = 3


def sick_rows(inputs) -> np.ndarray:
    """Which slots speak with as many Euler steps as the sick utterance."""
    sick = time_embedding(time_span(SICK_STEPS)[2:3], inputs["t_embedding"].shape[1])
    return (inputs["t_embedding"][::2] == sick).all(axis=1)


@pytest.fixture
def streams(batched):
    """Streams of three long speeches with seeds 0 to 2, from each of which a patch was read: all slots are taken.

    The batch, the streams, their first patches, and the tokens that cancel them.
    """
    tokens = [CancelToken() for _ in range(3)]
    with batched.continuous_batch() as batch:
        plans = [batched.plan(**LONG, seed=seed, cancel=token) for seed, token in enumerate(tokens)]
        opened = [batch.stream_plan(plan, chunk_patches=1) for plan in plans]
        yield batch, opened, [next(stream) for stream in opened], tokens


def test_one_joins_while_others_speak(batched):
    with batched.continuous_batch() as batch, ThreadPoolExecutor(3) as threads:
        first = [threads.submit(batch.speak_plan, batched.plan(**LONG, seed=seed)) for seed in range(2)]
        until(lambda: bool(batched.batch_driver.models["locdit_step"].calls))

        joined = np.concatenate(list(batch.stream_plan(batched.plan(**SHORT))))

        np.testing.assert_array_equal(joined, batched.generate(**SHORT))
        for seed, speech in enumerate(first):
            np.testing.assert_array_equal(speech.result().audio, batched.generate(**LONG, seed=seed))


def test_those_that_speak_at_the_same_time_share_their_calls(batched, batch_models):
    """One that comes in the middle of the others' patches is in step with them from its second patch on."""
    batched.generate(**LONG, seed=0)
    alone = len(batch_models["locdit_step"].calls)
    batch_models["locdit_step"].calls.clear()
    begin = threading.Barrier(3)

    with batched.continuous_batch() as batch, ThreadPoolExecutor(3) as threads:

        def read(seed: int) -> None:
            begin.wait(20)
            list(batch.stream_plan(batched.plan(**LONG, seed=seed), chunk_patches=1))

        list(threads.map(read, range(3)))

    # Alone they would take three times as many; a reader that the system lets wait leaves the common step for a patch.
    assert len(batch_models["locdit_step"].calls) < 2 * alone


def test_nobody_waits_for_a_stream_that_is_not_read(streams, batched):
    _, opened, first, _ = streams

    rest = np.concatenate([first[1], *opened[1]])

    np.testing.assert_array_equal(rest, batched.generate(**LONG, seed=1))
    for seed in (2, 0):
        rest = np.concatenate([first[seed], *opened[seed]])
        np.testing.assert_array_equal(rest, batched.generate(**LONG, seed=seed))


def test_a_reader_that_is_in_its_progress_callback_delays_nobody(batched):
    go, told = threading.Event(), threading.Event()

    def stay(_: object) -> None:
        told.set()
        assert go.wait(20)

    with batched.continuous_batch() as batch, ThreadPoolExecutor(1) as threads:
        slow = threads.submit(batch.speak_plan, batched.plan(**LONG, seed=0, progress=stay))
        assert told.wait(20)
        np.testing.assert_array_equal(
            batch.speak_plan(batched.plan(**SHORT)).audio, batched.generate(**SHORT)
        )
        assert not slow.done()
        go.set()
        np.testing.assert_array_equal(slow.result().audio, batched.generate(**LONG, seed=0))


@pytest.mark.parametrize("how", ["closed", "cancelled"])
def test_a_slot_is_free_as_soon_as_its_stream_has_ended(streams, batched, how):
    batch, opened, _, tokens = streams
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(batch.speak_plan, batched.plan(**SHORT))
        time.sleep(0.1)
        assert not waiting.done()
        if how == "closed":
            opened[1].close()
        else:
            # Nobody reads it, so that it cannot end by itself.
            tokens[1].cancel()

        np.testing.assert_array_equal(waiting.result(20).audio, batched.generate(**SHORT))
    if how == "cancelled":
        with pytest.raises(Cancelled):
            list(opened[1])


def test_a_step_model_that_fails_for_one_fails_for_no_other(batched, batch_models):
    step = batch_models["locdit_step"]
    healthy = type(step).__call__

    class Failing:
        new_state = step.new_state

        def __call__(self, inputs, state=None):
            if sick_rows(inputs).any():
                raise RuntimeError("out of memory")
            return healthy(step, inputs, state)

    batched.batch_driver.models["locdit_step"] = Failing()
    with batched.continuous_batch() as batch, ThreadPoolExecutor(3) as threads:
        plans = [batched.plan(**LONG, seed=seed) for seed in range(2)]
        others = [threads.submit(batch.speak_plan, plan) for plan in plans]
        with pytest.raises(RuntimeError, match="out of memory"):
            batch.speak_plan(batched.plan(**SHORT, inference_timesteps=SICK_STEPS))
        for seed, speech in enumerate(others):
            np.testing.assert_array_equal(speech.result(20).audio, batched.generate(**LONG, seed=seed))


def test_interrupting_the_thread_that_makes_a_call_ends_its_own_speech_only(batched, batch_models):
    """Ctrl-C comes in the main thread, wherever that happens to be."""
    step, interrupted = batch_models["locdit_step"], []
    healthy = type(step).__call__

    class Interrupted:
        new_state = step.new_state

        def __call__(self, inputs, state=None):
            if inputs["x"][::2].any(axis=(1, 2)).sum() == 3 and not interrupted:
                interrupted.append(threading.current_thread())
                raise KeyboardInterrupt
            return healthy(step, inputs, state)

    batched.batch_driver.models["locdit_step"] = Interrupted()
    with batched.continuous_batch() as batch, ThreadPoolExecutor(3) as threads:
        plans = [batched.plan(**LONG, seed=seed) for seed in range(3)]
        speeches = [threads.submit(batch.speak_plan, plan) for plan in plans]
        errors = [speech.exception(20) for speech in speeches]

    assert sorted(type(error).__name__ for error in errors) == ["KeyboardInterrupt", "NoneType", "NoneType"]
    for seed, speech in enumerate(speeches):
        if errors[seed] is None:
            np.testing.assert_array_equal(speech.result().audio, batched.generate(**LONG, seed=seed))


def test_closing_ends_all_and_lets_nothing_begin(streams, batched):
    batch, opened, _, _ = streams
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(batch.speak_plan, batched.plan(**SHORT))
        batch.close()
        with pytest.raises(Cancelled):
            waiting.result(20)
    for stream in opened:
        with pytest.raises(Cancelled):
            list(stream)
    with pytest.raises(InputError, match="this batch was closed"):
        batch.stream_plan(batched.plan(**SHORT))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("one_ahead")]


def test_a_bundle_without_a_batch_has_one_slot(tts):
    with tts.continuous_batch() as batch:
        assert batch.slots == 1
        assert len(batch.speak_plan(tts.plan(**SHORT)).latents) == 6
        stream = batch.stream_plan(tts.plan(**SHORT), chunk_patches=1)
        next(stream)
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(batch.speak_plan, tts.plan(**SHORT))
            time.sleep(0.05)
            assert not waiting.done()
            stream.close()
            np.testing.assert_array_equal(waiting.result(20).audio, tts.generate(**SHORT))


def test_a_session_speaks_in_the_slots_of_others_with_the_samples_it_has_alone(batched, batch_models):
    """It shares their calls. It holds a slot while it speaks a sentence, and none while it waits for text."""
    given = {"seed": 5, "min_len": 10, "max_len": 10, "retry_badcase": False}
    calls, begun = batch_models["locdit_step"].calls, threading.Event()

    def said(session) -> np.ndarray:
        with session:
            session.push_text("hello there. who are you?")
            session.flush()
            first = session.next_audio_chunk()
            begun.set()
            return np.concatenate([first.pcm, *(chunk.pcm for chunk in session)])

    alone, other_alone = said(batched.session(**given)), batched.generate(**LONG, seed=0)
    without_sharing = len(calls)
    calls.clear()
    begun.clear()

    with batched.continuous_batch() as batch, ThreadPoolExecutor(1) as threads:
        plan = batched.plan(**LONG, seed=0, progress=lambda _: begun.wait(20))
        other = threads.submit(batch.speak_plan, plan)
        np.testing.assert_array_equal(said(batched.session(**given, batch=batch)), alone)
        np.testing.assert_array_equal(other.result().audio, other_alone)
        assert len(calls) < 0.9 * without_sharing
        with batched.session(**given, batch=batch) as waiting:
            waiting.push_text("hello there.")
            waiting.flush()
            assert waiting.next_audio_chunk() is not None
            until(lambda: not waiting._speech._working)
            assert batch._slots._free.qsize() == batch.slots


def test_the_end_of_a_batch_ends_the_sessions_in_it(batched):
    with batched.continuous_batch() as batch:
        # So small a buffer is full after a part of the first patch.
        session = batched.session(batch=batch, seed=1, min_len=10, max_len=10, buffer_seconds=0.01)
        session.push_text("hello there.")
        session.flush()
        assert session.next_audio_chunk() is not None
    with session, pytest.raises(Cancelled):
        list(session)


def test_a_cancelled_call_does_not_wait_for_the_others(batched):
    """One is cancelled while its call waits for another's, which takes long."""
    go, inside, token = threading.Event(), threading.Event(), CancelToken()
    decode = batched.batch_driver.models["audio_vae_decoder"]
    function = decode.function

    def slow(inputs, state):
        if threading.current_thread() is patient:
            inside.set()
            assert go.wait(20)
        return function(inputs, state)

    with batched.continuous_batch() as batch:
        patient = threading.Thread(target=lambda: batch.speak_plan(batched.plan(**LONG, seed=0)))
        decode.function = slow
        patient.start()
        assert inside.wait(20)
        with ThreadPoolExecutor(1) as threads:
            cancelled = threads.submit(batch.speak_plan, batched.plan(**LONG, seed=1, cancel=token))
            time.sleep(0.1)
            assert not cancelled.done()
            token.cancel()
            with pytest.raises(Cancelled):
                cancelled.result(20)
        assert patient.is_alive()
        go.set()
        patient.join(20)
