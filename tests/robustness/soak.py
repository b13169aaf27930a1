"""Sixteen threads on one loaded voice: sessions, batches, streams and cancellations, until the time is over.

Run as a program, it prints what a run came to as JSON: BUNDLE SECONDS SAMPLES SEED.
"""

import gc
import json
import os
import random
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np

from voxcpm_runtime import CancelToken, VoxCPM
from voxcpm_runtime.audio.pcm import pcm16
from voxcpm_runtime.speech.request import Cancelled

THREADS = 16
HANGING = 120.0
"""Timeout of a thread's current task in seconds."""
ENDING = 5.0
"""Seconds for the system to remove a finished thread."""
OPTIONS = {"inference_timesteps": 2, "retry_badcase": False}
TEXTS = ("Yes.", "No, sir.", "One two.", "Come in. Go out.", "Good morning. It is late.", "Who is there?")


class Soak:
    """A run on one model. A result that differs from the same text spoken alone is wrong."""

    def __init__(self, tts):
        self.tts = tts
        self.outcomes: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.samples: list[dict[str, float]] = []
        self._alone = {text: pcm16(tts.generate(text, seed=3, **OPTIONS)) for text in TEXTS}
        self._lock = threading.Lock()
        # All threads wait here during a sample, so that it does not depend on their work.
        self._rest = threading.Barrier(THREADS + 1)
        self._resting, self._ends = threading.Event(), threading.Event()

    def run(self, seconds, samples, seed):
        """Run for that long, with that many samples. Raises threading.BrokenBarrierError if a thread hangs."""
        threads = [
            threading.Thread(target=self._work, args=(random.Random(f"{seed} {number}"),))
            for number in range(THREADS)
        ]
        began = time.monotonic()
        for thread in threads:
            thread.start()
        for number in range(samples):
            time.sleep(max(0.0, began + seconds * (number + 1) / samples - time.monotonic()))
            self._resting.set()
            self._rest.wait(HANGING)
            self.samples.append(_sample(time.monotonic() - began))
            if number + 1 == samples:
                self._ends.set()
            self._resting.clear()
            self._rest.wait(HANGING)
        for thread in threads:
            thread.join(HANGING)
        if any(thread.is_alive() for thread in threads):
            self.wrong.append("a thread has not ended at the end")

    def _work(self, chance):
        while not self._ends.is_set():
            if self._resting.is_set():
                self._rest.wait(HANGING)
                self._rest.wait(HANGING)
                continue
            way, text = chance.choice(WAYS), chance.choice(TEXTS)
            name = way.__name__.strip("_").replace("_", " ")
            try:
                got = way(self.tts, text, chance)
                differ = [said for said, audio in got or () if not np.array_equal(audio, self._alone[said])]
                problem = f"{differ} differ from what they are alone" if differ else ""
            except Exception as error:  # noqa: BLE001 - counted
                problem = repr(error)
            with self._lock:
                self.outcomes["wrong" if problem else name] += 1
                self.wrong += [f"{name}: {problem}"] if problem else []


def _whole(tts, text, _):
    return [(text, pcm16(tts.generate(text, seed=3, **OPTIONS)))]


def _streamed(tts, text, _):
    return [(text, pcm16(np.concatenate(list(tts.generate_streaming(text, seed=3, **OPTIONS)))))]


def _in_session(tts, _, chance):
    """A session speaks sentence by sentence, so only one-sentence texts equal speech alone."""
    text = chance.choice([one for one in TEXTS if one.count(".") + one.count("?") == 1])
    with tts.session(seed=3, **OPTIONS) as session:
        cut = chance.randrange(len(text))
        session.push_text(text[:cut])
        session.push_text(text[cut:])
        session.flush()
        return [(text, np.concatenate([chunk.pcm for chunk in session]))]


def _in_batch(tts, text, chance):
    texts = [text, chance.choice(TEXTS)]
    speeches = tts.batch([{"text": one, "seed": 3, **OPTIONS} for one in texts])
    return [(one, pcm16(speech.audio)) for one, speech in zip(texts, speeches, strict=True)]


def _cancelled(tts, text, chance):
    token = CancelToken()
    timer = threading.Timer(chance.uniform(0, 0.5), token.cancel)
    timer.start()
    try:
        tts.generate(text * 5, seed=3, cancel=token, **OPTIONS)
    except Cancelled:
        pass
    finally:
        timer.cancel()
        timer.join()


def _left_session(tts, text, chance):
    """Closed while it speaks, or cancelled first, or before anything was read."""
    with tts.session(seed=3, **OPTIONS) as session:
        session.push_text(text * 3)
        for _ in range(chance.randrange(3)):
            session.next_audio_chunk(timeout=0.2)
        if chance.random() < 0.5:
            session.cancel()


WAYS = (_whole, _streamed, _in_session, _in_batch, _cancelled, _left_session)


def _sample(second):
    """The process's current resources."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    until = time.monotonic() + ENDING
    # Python's `join` returns when a thread has no more to do with Python. The system lists it until it has run to its
    # end, which takes milliseconds where others want the same cores.
    while _count("task") > threading.active_count() and time.monotonic() < until:
        time.sleep(0.01)
    return {
        "second": round(second, 1),
        "megabytes": round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1),
        "descriptors": _count("fd"),
        "threads": _count("task"),
    }


def _count(what):
    return len(os.listdir(f"/proc/self/{what}"))  # noqa: PTH208 - no paths needed


if __name__ == "__main__":
    bundle, seconds, samples, seed = sys.argv[1:]
    with VoxCPM.from_bundle(bundle, precision="int8", threads=1) as opened:
        soak = Soak(opened)
        soak.run(float(seconds), int(samples), int(seed))
    print(json.dumps({"outcomes": soak.outcomes, "wrong": soak.wrong[:20], "samples": soak.samples}))
